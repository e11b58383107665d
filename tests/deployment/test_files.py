import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, RoutingRule, choose_threshold, fit_policy, route_file
from calibrant.deployment import Stream, read_reference, read_stream, watch
from calibrant.deployment.monitor_stream import is_log
from calibrant.errors import InvalidInput
from calibrant.predictions import read_table
from tests.deployment.conftest import draw, with_rule


@pytest.fixture
def cases(rule, tmp_path):
    """200 decided cases, and the same as predictions."""
    predictions = draw(200, seed=20, ids=True)
    predictions.save(tmp_path / "new.npz")
    return predictions


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_decisions_and_labels_give_what_predictions_give(rule, cases, tmp_path, ending):
    route_file(with_rule(rule), tmp_path / "new.npz", tmp_path / f"decisions.{ending}")
    lines = [f"{name},{cases.class_names[y]}" for name, y in zip(cases.ids, cases.targets, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,target", *lines]) + "\n")
    found = read_stream(tmp_path / f"decisions.{ending}", with_rule(rule), labels=tmp_path / "labels.csv")
    expected = Stream.of_predictions(with_rule(rule), cases)
    for name in ("automate", "predicted", "confidence", "targets"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert found.ids.tolist() == cases.ids.tolist()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_that_decisions_keep_groups_them(rule, cases, tmp_path, ending):
    sites, scores = np.where(np.arange(200) < 80, "=north", "south"), np.arange(200) / 7
    grouped = Predictions.from_logits(
        cases.logits,
        cases.targets,
        ids=cases.ids,
        class_names=cases.class_names,
        extras={"site": sites, "x": scores, "confidence": scores},
    )
    grouped.save(tmp_path / "new.npz")
    target = tmp_path / f"decisions.{ending}"
    route_file(with_rule(rule), tmp_path / "new.npz", target, keep=["site", "x"])
    found = read_stream(target, with_rule(rule))
    assert list(found.extras) == ["site", "x"]
    assert found.extras["site"].tolist() == sites.tolist()
    assert np.asarray(found.extras["x"], dtype=float).tolist() == scores.tolist()
    with pytest.raises(InvalidInput, match=r"keep must name columns .* got 'sit'\. Did you mean 'site'"):
        route_file(with_rule(rule), tmp_path / "new.npz", target, keep=["sit"])
    with pytest.raises(InvalidInput, match=r"keep must name columns .* that decisions have not, got 'confidence'"):
        route_file(with_rule(rule), tmp_path / "new.npz", target, keep=["confidence"])


def test_predictions_are_decided_by_the_rule(rule, cases, tmp_path):
    found = read_stream(tmp_path / "new.npz", with_rule(rule))
    assert np.array_equal(found.automate, rule.route(cases).automate)
    assert np.array_equal(found.targets, cases.targets)


def write(path, text):
    path.write_text(text)
    return path


HEAD = "id,decision,predicted,class,confidence"


def test_own_labels_groups_and_times(tmp_path):
    text = f"{HEAD},site,time,target\nx,auto,1,b,0.99,north,2026-01-02,b\n'=y,review,0,a,0.5,south,2026-01-01,\n"
    found = read_stream(write(tmp_path / "d.csv", text), with_rule(RoutingRule(0.9, 2, class_names=("a", "b"))))
    assert found.targets.tolist() == [1, -1]
    assert found.ids.tolist() == ["x", "=y"]
    assert found.extras["site"].tolist() == ["north", "south"]
    assert list(found.extras) == ["site"]


def test_labels_are_taken_in_their_own_order_and_once(tmp_path):
    rule = RoutingRule(0.9, 2)
    decisions = write(tmp_path / "d.csv", f"{HEAD}\nx,auto,1,1,0.99\ny,auto,0,0,0.95\nz,auto,0,0,0.95\n")
    labels = write(tmp_path / "l.csv", "id,label\nz,0\nx,1\nz,0\nelsewhere,1\n")
    found = read_stream(decisions, with_rule(rule), labels=labels)
    assert found.targets.tolist() == [1, -1, 0]
    assert found.label_order.tolist() == [2, 0, 1]


def test_labels_are_all_names_or_all_numbers_as_targets_are(tmp_path):
    """Names that are other classes' numbers must not be mixed up with these, and -1 may be a name."""
    rule = RoutingRule(0.9, 3, class_names=("1", "2", "3"))
    decisions = write(tmp_path / "d.csv", f"{HEAD}\nx,auto,0,1,0.99\ny,auto,1,2,0.95\nz,auto,2,3,0.95\n")
    for text, expected in (("x,1\ny,2\nz,3", [0, 1, 2]), ("x,0\ny,1\nz,2", [0, 1, 2])):
        found = read_stream(decisions, with_rule(rule), labels=write(tmp_path / "l.csv", f"id,target\n{text}\n"))
        assert found.targets.tolist() == expected
    with pytest.raises(InvalidInput, match="label must be class names or class numbers"):
        read_stream(decisions, with_rule(rule), labels=write(tmp_path / "l.csv", "id,target\nx,1\ny,2\n"))
    signs = RoutingRule(0.9, 2, class_names=("-1", "1"))
    text = f"{HEAD},target\nx,auto,0,-1,0.99,-1\ny,auto,1,1,0.95,1\nz,auto,1,1,0.95,\n"
    assert read_stream(write(tmp_path / "s.csv", text), with_rule(signs)).targets.tolist() == [0, 1, -1]


def decisions_with_labels(path, wrong, order, n_labels, *, stamp=None):
    """Automated cases of class 0; the first `n_labels` cases in `order` have a label, with its place or its time."""
    place = np.empty(len(wrong), dtype=int)
    place[order] = np.arange(len(wrong))
    lines = [f"{HEAD},target" + (",labelled_at" if stamp else "")]
    for row, (error, at) in enumerate(zip(wrong.astype(int), place, strict=True)):
        known = at < n_labels
        lines.append(
            f"c{row},auto,0,0,0.95,{error if known else ''}" + (f",{stamp(at) if known else ''}" if stamp else "")
        )
    return write(path, "\n".join(lines) + "\n")


PROMISE = RoutingRule(0.9, 2, target_accuracy=0.95, confidence=0.95)
ORDERS = {
    "newest first": lambda n, rng: np.arange(n)[::-1],
    "random": lambda n, rng: rng.permutation(n),
    "every third, then the others": lambda n, rng: np.argsort(np.arange(n) % 3 != 0, kind="stable"),
}
STAMPS = {"number": str, "time": lambda at: f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}+01:00"}


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("order", ORDERS)
def test_labels_of_a_file_count_in_the_order_in_which_they_came(tmp_path, order, stamp):
    """No look changes what an earlier one saw: the process is that of the labels in the order of their times."""
    rng = np.random.default_rng(0)
    wrong, places = rng.random(300) < 0.15, ORDERS[order](300, rng)

    def look(n_labels):
        path = decisions_with_labels(tmp_path / "d.csv", wrong, places, n_labels, stamp=STAMPS[stamp])
        return watch(read_stream(path, with_rule(PROMISE))).signals[0]

    last = look(300)
    assert last.curve.case == tuple((places + 1).tolist())
    assert last.alarm is not None
    for n_labels in range(10, 300, 60):
        early = look(n_labels)
        assert last.curve.evidence[:n_labels] == pytest.approx(early.curve.evidence)
        assert early.alarm in (None, last.alarm)


@pytest.mark.parametrize("order", ORDERS)
def test_looks_at_labels_in_any_order_raise_few_false_alarms(order):
    """1,000 cases at the promise. The last look holds what all looks, one every label, have seen."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        targets = (rng.random(1000) < 0.05).astype(int)
        place = np.empty(1000, dtype=int)
        place[ORDERS[order](1000, rng)] = np.arange(1, 1001)
        predicted, sure = np.zeros(1000, dtype=int), np.full(1000, 0.95)
        given = {"targets": targets, "label_order": place}
        stream = Stream.of_decisions(PROMISE, sure > 0.9, predicted, sure, **given)
        alarms += bool(watch(stream, level=0.1).alarms)
    assert alarms <= 12  # more have a probability below 0.01


@pytest.mark.parametrize("order", ORDERS)
def test_labels_without_an_order_are_refused(tmp_path, order):
    wrong, rng = np.zeros(30, dtype=bool), np.random.default_rng(0)
    for n_labels in (5, 20):
        path = decisions_with_labels(tmp_path / "d.csv", wrong, ORDERS[order](30, rng), n_labels)
        with pytest.raises(InvalidInput, match="labelled_at"):
            watch(read_stream(path, with_rule(PROMISE)))
    # All labels, or those of the first cases, are in the order of the cases.
    for n_labels in (0, 5, 30):
        path = decisions_with_labels(tmp_path / "d.csv", wrong, np.arange(30), n_labels)
        assert watch(read_stream(path, with_rule(PROMISE))).signals[0].cases == n_labels


@pytest.mark.parametrize("bad", ["", "soon", "nan"])
def test_a_label_without_a_time_is_refused(tmp_path, bad):
    text = f"{HEAD},target,labelled_at\nx,auto,0,0,0.95,0,3\ny,auto,0,0,0.95,0,{bad}\nz,auto,0,0,0.95,,\n"
    with pytest.raises(InvalidInput, match=r"labelled_at must be a number or a time .* in row"):
        read_stream(write(tmp_path / "d.csv", text), with_rule(PROMISE))


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ("x,auto,1,1,0.5", None, "decisions must be those of this rule, got auto at confidence 0.5 in row 0"),
        ("x,review,1,1,0.95", None, "1 of 1 differ: name the rule that decided"),
        ("x,auto,1,1,0.95\nx,auto,1,1,0.95", None, "ids must be distinct"),
        ("x,maybe,1,1,0.95", None, "decision must be auto or review, got 'maybe' in row 0"),
        ("x,auto,7,7,0.95", None, "predicted must be a class name .* got .7. in row 0"),
        ("x,auto,one,1,0.95", None, "predicted must be a class name"),
        ("x,auto,1,1,1.5", None, "confidence must lie in 0..1, got 1.5"),
        ("x,auto,1,1", None, "row 0 must have 5 cells"),
        ("x,auto,1,1,0.95", "x,0\nx,1", "not contradict each other, got 0 and 1 for 'x'"),
        ("x,auto,1,1,0.95", "q,0", "none of its 1 labels .* labels is .q., that of the decisions .x."),
        (
            "x,auto,1,1,0.95",
            "x,dog",
            "label must be a class name .* number in 0..1, got .dog. in row 0",
        ),
    ],
)
def test_bad_files_are_one_line(tmp_path, rows, labels, message):
    decisions = write(tmp_path / "d.csv", f"{HEAD}\n{rows}\n")
    given = None if labels is None else write(tmp_path / "l.csv", f"id,target\n{labels}\n")
    with pytest.raises(InvalidInput, match=message) as caught:
        read_stream(decisions, with_rule(RoutingRule(0.9, 2)), labels=given)
    assert "\n" not in str(caught.value)


def test_other_bad_input(tmp_path, rule, cases):
    empty = write(tmp_path / "e.csv", HEAD + "\n")
    with pytest.raises(InvalidInput, match="at least one case"):
        read_stream(empty, with_rule(RoutingRule(0.9, 2)))
    with pytest.raises(InvalidInput, match="does not hold the policy that decided"):
        read_stream(empty, None)
    with pytest.raises(InvalidInput, match="have the columns id"):
        read_stream(write(tmp_path / "n.csv", "id,decision\nx,auto\n"), with_rule(RoutingRule(0.9, 2)))
    with pytest.raises(InvalidInput, match="be left out for predictions"):
        read_stream(tmp_path / "new.npz", with_rule(rule), labels=empty)
    with pytest.raises(InvalidInput, match="does not exist"):
        read_stream(tmp_path / "missing.csv", with_rule(rule))
    with pytest.raises(InvalidInput, match="have the columns id and target, got id, decision"):
        read_stream(
            write(tmp_path / "g.csv", f"{HEAD}\nx,auto,1,1,0.95\n"), with_rule(RoutingRule(0.9, 2)), labels=empty
        )


def test_reference_is_the_file_that_the_rule_was_chosen_on(tmp_path):
    first, other = draw(500, seed=21), draw(500, seed=22)
    first.save(tmp_path / "val.npz")
    other.save(tmp_path / "other.npz")
    loaded = Predictions.load(tmp_path / "val.npz")
    plain = with_rule(choose_threshold(loaded, 0.9))
    assert len(read_reference(tmp_path / "val.npz", plain)) == 500
    with pytest.raises(InvalidInput, match="reference must be the file that the rule was chosen on"):
        read_reference(tmp_path / "other.npz", plain)
    calibrator = TemperatureScaling().fit(other)
    behind = Policy(first.n_classes, calibrator, choose_threshold(calibrator(loaded), 0.9))
    made = read_reference(tmp_path / "val.npz", behind)
    assert np.allclose(made.confidence, calibrator(first).confidence)
    # Without the cases that fitted the calibrator.
    both = fit_policy(loaded, 0.9, share=0.2, seed=4)
    assert np.array_equal(read_reference(tmp_path / "val.npz", both).targets, loaded.split(0.2, seed=4)[1].targets)


def test_what_is_a_log():
    assert is_log("decisions.db")
    assert not is_log("decisions.csv")
    assert not is_log("new.jsonl")


@pytest.mark.parametrize("what", ["predictions", "decisions"])
def test_a_folder_of_parts_is_the_stream_of_its_rows(tmp_path, what):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(900, 3))
    targets = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    whole = Predictions.from_logits(logits, targets, ids=[f"case {n}" for n in range(900)])
    rule = choose_threshold(whole, 0.7)
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(np.array_split(np.arange(900), 3)):
        whole.subset(part).save(tmp_path / "parts" / f"{number}.parquet")
    whole.save(tmp_path / "whole.parquet")
    folder, file = tmp_path / "parts", tmp_path / "whole.parquet"
    if what == "decisions":
        folder, file = tmp_path / "decided", tmp_path / "decided.parquet"
        folder.mkdir()
        for part in (tmp_path / "parts").iterdir():
            route_file(with_rule(rule), part, folder / part.name)
        route_file(with_rule(rule), tmp_path / "parts", file)
    assert not is_log(folder)
    found, expected = read_stream(folder, with_rule(rule)), read_stream(file, with_rule(rule))
    for name in ("automate", "predicted", "confidence", "targets", "ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_damaged_part_of_a_folder_is_one_line(rule, cases, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "0.parquet").write_bytes(b"no table")
    with pytest.raises(InvalidInput, match=r"0\.parquet must be a whole Parquet file"):
        read_stream(tmp_path / "parts", with_rule(rule))


@pytest.mark.parametrize("predicted", ["0.5", "nan", "1e300"])
def test_predicted_classes_are_whole_numbers(tmp_path, predicted):
    decisions = write(tmp_path / "d.csv", f"{HEAD}\nx,auto,{predicted},1,0.99\n")
    with pytest.raises(InvalidInput, match=r"predicted must be a class name .* in row 0"):
        read_stream(decisions, with_rule(RoutingRule(0.9, 2)))


def test_decisions_that_unfold_to_far_more_than_their_file_are_refused_before_they_are_read(tmp_path):
    rows = 3_000_000
    codes = pa.array(np.zeros(rows, np.int8))
    columns = {
        name: pa.DictionaryArray.from_arrays(codes, pa.array([name])) for name in ("id", "decision", "predicted")
    }
    parquet.write_table(pa.table(columns), tmp_path / "d.parquet")
    with pytest.raises(InvalidInput, match="times its size"):
        read_stream(tmp_path / "d.parquet", with_rule(RoutingRule(0.9, 2)))


def test_a_long_text_that_a_file_holds_once_is_kept_once(tmp_path):
    parquet.write_table(pa.table({"note": ["x" * 100_000] * 500 + [None], "n": range(501)}), tmp_path / "d.parquet")
    found = read_table(tmp_path / "d.parquet")
    assert found["note"][0] is found["note"][499]
    assert found["note"][500] is None
    assert found["n"] == list(range(501))
