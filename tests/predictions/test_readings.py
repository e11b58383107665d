"""Natural tables: frames of pandas, JSON lines, text labels, and one column of two classes."""

import numpy as np
import pandas as pd
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import CalibrantWarning, InvalidInput

FRAME = pd.DataFrame(
    {"p_cat": [0.9, 0.3, 0.2], "p_dog": [0.1, 0.7, 0.8], "label": ["cat", "cat", "dog"], "age": [1, 2, 3]}
)


def test_a_frame_is_read_like_a_file(tmp_path):
    FRAME.to_csv(tmp_path / "p.csv")
    FRAME.to_parquet(tmp_path / "p.parquet")
    FRAME.to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    found = [Predictions.from_frame(FRAME), Predictions.from_frame(FRAME.astype({"label": "category"}))]
    found += [Predictions.load(tmp_path / name) for name in ("p.csv", "p.parquet", "p.jsonl")]
    for each in found:
        assert each.class_names == ("cat", "dog")
        assert each.targets.tolist() == [0, 0, 1]
        assert each.probabilities.tolist() == FRAME[["p_cat", "p_dog"]].to_numpy().tolist()
        assert each.extras["age"].tolist() == [1, 2, 3]
    with pytest.raises(InvalidInput, match="frame must be a data frame"):
        Predictions.from_frame([[1, 2]])


def test_a_frame_of_polars_is_read_too():
    polars = pytest.importorskip("polars")
    assert Predictions.from_frame(polars.DataFrame(FRAME.to_dict("list"))).targets.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("positive", "first"), [("yes", 0.2), ("no", 0.2)])
def test_one_column_of_two_classes(positive, first):
    frame = pd.DataFrame({"probability": [0.8, 0.1], "label": ["yes", "no"]})
    found = Predictions.from_frame(frame, columns={"positive": positive})
    assert set(found.class_names) == {"yes", "no"}
    assert found.class_names[1] == positive
    assert found.probabilities[0, 0] == pytest.approx(first)
    assert [found.class_names[k] for k in found.targets] == ["yes", "no"]


@pytest.mark.parametrize(("column", "predicted"), [("prob_1", [1, 0]), ("prob_0", [0, 1])])
def test_a_class_number_in_the_name_of_the_only_column_is_that_class(column, predicted):
    found = Predictions.from_frame(pd.DataFrame({column: [0.8, 0.1], "y": [1, 0]}))
    assert found.class_names is None
    assert found.predicted.tolist() == predicted


@pytest.mark.parametrize(
    ("column", "labels", "names", "probabilities"),
    [
        ("p_spam", ["spam", "spam"], ("not spam", "spam"), [0.8, 0.3]),
        ("prob_1", [1, 1], None, [0.8, 0.3]),
        ("prob_1", [0, 0], None, [0.8, 0.3]),
        ("p_0", [1, 1], None, [0.2, 0.7]),
    ],
)
def test_one_column_of_two_classes_of_which_one_occurs(column, labels, names, probabilities):
    found = Predictions.from_frame(pd.DataFrame({column: [0.8, 0.3], "label": labels}))
    assert found.class_names == names
    assert found.probabilities[:, 1].tolist() == pytest.approx(probabilities)
    own = names or ("0", "1")
    assert [own[k] for k in found.targets] == list(map(str, labels))


@pytest.mark.parametrize(
    ("column", "label", "flags"),
    [
        (
            "probability",
            "yes",
            ["the score of 'yes': --positive yes. If not, name the other class so"],
        ),
        ("probability", 1, ["the score of '0': --positive 0", "the score of '1': --positive 1"]),
        ("p_value", "manual check", ["the score of 'manual check': --positive 'manual check'", "--positive value"]),
    ],
)
def test_one_column_and_one_label_that_do_not_name_the_class_are_refused_with_the_flags(column, label, flags):
    frame = pd.DataFrame({column: [0.8, 0.3], "label": [label, label]})
    with pytest.raises(InvalidInput) as caught:
        Predictions.from_frame(frame)
    assert all(flag in str(caught.value) for flag in flags)
    found = Predictions.from_frame(frame, columns={"positive": str(label)})
    assert (found.class_names or ("0", "1"))[1] == str(label)
    assert found.targets.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("labels", "answers", "flags"),
    [
        (["cat", "dog"], ["cat", "cat"], ["--positive cat", "--positive dog", "--columns 'predicted=my answer'"]),
        (["cat", "cat"], ["cat", "cow"], ["--positive cat", "--columns 'predicted=my answer'"]),
        (["cat", "cow"], ["cat", "cow"], ["--columns 'predicted=my answer'"]),
    ],
)
def test_the_column_of_the_predicted_class_is_found_for_the_message(labels, answers, flags):
    frame = pd.DataFrame({"my answer": answers, "confidence": [0.8, 0.3], "label": labels, "note": ["x", "y"]})
    with pytest.raises(InvalidInput) as caught:
        Predictions.from_frame(frame)
    assert all(flag in str(caught.value) for flag in flags), str(caught.value)
    assert "note" not in str(caught.value).partition("Choose one")[2]
    assert Predictions.from_frame(frame, columns={"predicted": "my answer"}).kind == "confidence"


@pytest.mark.parametrize(
    ("heading", "labels", "flags"),
    [
        ("proba", ["spam", "ham"], ["--kind confidence", "--positive ham", "--positive spam"]),
        ("y_proba", [1, 0], ["--kind confidence", "--positive 0", "--positive 1"]),
        ("y_score", [1, 0], ["--kind confidence", "--kind score", "--positive 0", "--positive 1"]),
    ],
)
def test_a_probability_beside_predictions_of_two_classes_may_be_of_one_of_them(heading, labels, flags):
    frame = pd.DataFrame({"y_true": labels * 2, "y_pred": labels * 2, heading: [0.9, 0.2, 0.6, 0.4]})
    with pytest.raises(InvalidInput, match=f"can be read in {len(flags)} ways") as caught:
        Predictions.from_frame(frame)
    assert all(flag in str(caught.value) for flag in flags)
    assert evaluate(Predictions.from_frame(frame, kind="confidence")).test_error == 0
    frame["y_pred"] = frame["y_pred"].iloc[0]
    of_one = Predictions.from_frame(frame, kind="probabilities", columns={"positive": str(labels[0])})
    assert of_one.has_all_classes
    assert evaluate(of_one).test_error == 0


def test_a_probability_beside_predictions_of_three_classes_is_theirs():
    frame = pd.DataFrame({"y_true": ["a", "b", "c"], "y_pred": ["a", "b", "b"], "proba": [0.9, 0.2, 0.6]})
    assert Predictions.from_frame(frame).kind == "confidence"


def test_columns_named_like_the_labels_need_no_labels_if_the_classes_are_known():
    frame = pd.DataFrame({"cat": [0.9], "dog": [0.1], "age": [3], "y": ["cat"]})
    found = Predictions.from_frame(frame, kind="probabilities", class_names=["dog", "cat"])
    assert (found.class_names, found.predicted.tolist()) == (("dog", "cat"), [1])
    with pytest.raises(InvalidInput, match="does not say whether"):
        Predictions.from_frame(frame, class_names=["dog", "cat"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"p_a": 1, "p_b": "x", "label": "a"}', "scores must be numbers, got 'x' in row 0, column p_b"),
        ('{"p_a": 1, "p_b": 0, "y": 0}\n{"p_a": 1, "y": 0}', "scores must be numbers, got None in row 1"),
        ('{"p_a": 1, "p_b": 0, "label": [1]}', "label in row 0 must be a number or text, got list"),
        ("[1, 2]", "line 1 must be a JSON object, got list"),
        ('{"p_a": 1', "line 1 must be a JSON file"),
        ("", "no columns"),
    ],
)
def test_bad_json_lines_are_refused(tmp_path, line, message):
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(InvalidInput, match=message):
        Predictions.load(tmp_path / "p.jsonl")


def test_lists_and_objects_without_a_role_are_left_out_of_json_lines(tmp_path):
    line = (
        '{"predicted": "a", "confidence": 0.9, "label": "a", "usage": {"tokens": 3}, "logprobs": [-0.1], "site": "x"}'
    )
    (tmp_path / "p.jsonl").write_text(f"{line}\n{line}\n")
    found = Predictions.load(tmp_path / "p.jsonl")
    assert (len(found), list(found.extras)) == (2, ["site"])


def test_text_labels_and_id2label():
    logits = [[1.0, 2.0], [2.0, 1.0]]
    for names in (["cat", "dog"], {0: "cat", 1: "dog"}, {"1": "dog", "0": "cat"}):
        assert Predictions.from_logits(logits, np.array(["dog", "cat"]), class_names=names).targets.tolist() == [1, 0]
    with pytest.raises(InvalidInput, match=r"got 'cow' in row 1\."):
        Predictions.from_logits(logits, ["cat", "cow"], class_names=["cat", "dog"])
    with pytest.raises(InvalidInput, match="pass class_names"):
        Predictions.from_logits(logits, ["cat", "dog"])
    with pytest.raises(InvalidInput, match=r"map the numbers 0\.\.1 to names, got 1, 2"):
        Predictions.from_logits(logits, [0, 1], class_names={1: "cat", 2: "dog"})


def test_arrays_are_evaluated_without_predictions():
    probabilities, y = [[0.9, 0.1], [0.3, 0.7]], [0, 0]
    expected = evaluate(Predictions.from_probabilities(probabilities, y))
    assert evaluate(probabilities, y, kind="probabilities") == expected
    assert evaluate([0.1, 0.7], y, kind="probabilities").test_error == expected.test_error
    for arguments in ((probabilities,), (probabilities, y)):
        with pytest.raises(InvalidInput, match="predictions must be Predictions, got list"):
            evaluate(*arguments)
    with pytest.raises(InvalidInput, match="targets and kind must be left out"):
        evaluate(Predictions.from_probabilities(probabilities, y), y)


def test_text_that_looks_like_a_number_stays_text(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("predicted,confidence,target\n007,0.9,007\n7,0.8,007\ncat,0.7,cat\n12,0.6,12\n")
    words = Predictions.load(path)
    assert words.class_names == ("007", "12", "7", "cat")
    assert words.correct.tolist() == [True, False, True, True]


@pytest.mark.parametrize("name", ["y_true", "truth", "ground_truth", "true_label", "true_class", "gold"])
def test_the_usual_names_of_the_label_need_no_flag(tmp_path, name):
    path = tmp_path / "table.csv"
    path.write_text(f"p_a,p_b,{name}\n0.3,0.7,a\n0.2,0.8,b\n")
    assert Predictions.load(path).targets.tolist() == [0, 1]
    path.write_text(f"p_a,p_b,{name},label\n0.3,0.7,a,b\n")
    with pytest.raises(InvalidInput, match=f"--columns target={name}"):
        Predictions.load(path)


def test_names_of_columns_may_have_capital_letters(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("Id,Predicted,Confidence,Label\n7,cat,0.9,cat\n8,dog,0.4,cat\n")
    answers = Predictions.load(path)
    assert answers.kind == "confidence"
    assert evaluate(answers).test_error == 0.5
    path.write_text("p_a,p_b,Label,label,Y\n0.5,0.5,a,b,3\n")
    table = Predictions.load(path)  # the usual spelling decides alone
    assert table.targets.tolist() == [1]
    assert set(table.extras) == {"Label", "Y"}
    path.write_text("p_a,p_b,LABEL,Label\n0.5,0.5,a,b\n")
    with pytest.raises(InvalidInput, match=r"--columns target=LABEL; .*--columns target=Label"):
        Predictions.load(path)


@pytest.mark.parametrize(
    ("table", "advice"),
    [
        ("p_a,p_b,label\n0.5,0.5,a\n0.5,0.5,\n", "in row 1. Leave out the rows without a label"),
        ("p_a,p_b,label\n,0.5,a\n", "Leave out the rows without scores"),
        ("p_a,p_b,label\n50%,50%,a\n", "Write fractions"),
        ("p_a,p_b,species\n0.5,0.5,a\n", "--columns target=species"),
        ("0.9,0.1,a\n0.5,0.5,b\n", "Its first line must hold the names of the columns"),
        ("p_cat,p_dog,label\n0.5,0.5,Cat\n", "Classes: cat, dog"),
        ("p_cat,p_dog,p_value,label\n0.5,0.5,0.3,cat\n", "probabilities in p_cat, p_dog, p_value must sum to 1"),
        ("p_0,p_1,label\n0.5,0.5,a\n", "Name the classes: p_cat and so on"),
        ("id,p_a,p_b,label\n7,0.5,0.5,a\n7,0.5,0.5,b\n", "pass that name as clusters"),
    ],
)
def test_a_refusal_says_what_to_do(tmp_path, table, advice):
    path = tmp_path / "table.csv"
    path.write_text(table)
    with pytest.raises(InvalidInput, match=advice):
        Predictions.load(path)


def test_labels_of_a_frame_may_be_true_and_false():
    frame = pd.DataFrame({"probability": [0.8, 0.3, 0.6], "label": [True, False, False]})
    predictions = Predictions.from_frame(frame, columns={"positive": "True"})
    assert predictions.class_names == ("False", "True")
    assert evaluate(predictions).test_error == pytest.approx(1 / 3)


@pytest.mark.parametrize("more", [{"p_a2": [1, 2]}, {"note": ["text", 7]}])
def test_a_frame_that_is_no_table_is_refused_in_one_line(more):
    frame = pd.DataFrame({"p_a": [0.5, 0.4], "p_b": [0.5, 0.6], "label": ["a", "b"], **more})
    frame = frame.rename(columns={"p_a2": "p_a"})
    with pytest.raises(InvalidInput, match=r"^frame: .*Leave out columns") as caught:
        Predictions.from_frame(frame)
    assert "\n" not in str(caught.value)


def test_labels_that_contradict_the_predictions_are_doubted():
    rng = np.random.default_rng(0)
    p = rng.random(200)
    yes = (rng.random(200) < p).astype(int)
    frame = pd.DataFrame({"p_yes": p, "p_no": 1 - p, "label": yes})  # 0 is the first column, which is p_yes
    with pytest.warns(CalibrantWarning, match="right, and chance alone would give .*: 0 is yes, 1 is no"):
        found = Predictions.from_frame(frame)
    assert found.correct.mean() < 0.4
    for good in (frame[["p_no", "p_yes", "label"]], frame.head(20), frame.assign(label=1)):
        Predictions.from_frame(good)  # warnings are errors here
    answers = pd.DataFrame({"predicted": ["Cat", "Dog"] * 20, "confidence": 0.9, "target": ["cat", "dog"] * 20})
    with pytest.warns(CalibrantWarning, match="no predicted class is a label.*Predicted: Cat, Dog. Labels: cat, dog"):
        Predictions.from_frame(answers)
    Predictions.from_frame(answers.assign(predicted="dog"))


@pytest.mark.parametrize("words", [(False, True), ("false", "true"), ("FALSE", "TRUE")])
def test_true_is_class_1_of_two(words):
    frame = pd.DataFrame({"probability": [0.8, 0.1], "label": [words[1], words[0]]})
    found = Predictions.from_frame(frame, columns={"positive": "1"})
    assert (found.class_names, found.targets.tolist()) == ((str(words[0]), str(words[1])), [1, 0])


def test_an_empty_label_of_two_classes_is_refused(tmp_path):
    (tmp_path / "p.csv").write_text("p_yes,label\n0.8,yes\n0.1,\n0.3,no\n")
    with pytest.raises(InvalidInput, match="must have a label in every row"):
        Predictions.load(tmp_path / "p.csv")
