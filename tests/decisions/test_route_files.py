import csv
import json
import signal
import subprocess
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling, VectorScaling
from calibrant.decisions import Policy, RoutingRule, Shortlist, route_file
from calibrant.decisions.route_files import guarded, unguarded
from calibrant.errors import InvalidInput

NAMES = ("cat", "dog", "owl")
RULE = RoutingRule(threshold=0.8, n_classes=3, class_names=NAMES)
POLICY = Policy(3, TemperatureScaling.known(1.7, 3), RULE)


def plain(threshold, n_classes, class_names=None):
    """A policy without a calibrator."""
    return Policy(n_classes, rule=RoutingRule(threshold, n_classes, class_names=class_names))


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(size=(50, 3)) * 3


@pytest.fixture(params=[1, 7, 2**18])
def block(request, monkeypatch):
    """Blocks of two rows, of some, and all at once."""
    monkeypatch.setattr("calibrant.predictions.columns._BLOCK_CELLS", request.param)


def write(path, logits, *, names=NAMES, ids=True, targets=True, prefix="logit_"):
    columns = {f"{prefix}{name}": logits[:, k] for k, name in enumerate(names)}
    if ids:
        columns = {"id": [f"case-{row}" for row in range(len(logits))], **columns}
    if targets:
        columns["target"] = [0] * len(logits)
    if path.suffix == ".npz":
        arrays = {"logits" if prefix == "logit_" else "probabilities": logits, "class_names": np.array(names)}
        np.savez(path, **arrays, **({"ids": np.array(columns["id"])} if ids else {}))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    else:
        with path.open("w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def read(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.npz"])
@pytest.mark.parametrize("target", ["out.csv", "out.parquet"])
def test_every_format_decides_as_the_rule_does(tmp_path, logits, block, source, target):
    counts = route_file(POLICY, write(tmp_path / source, logits), tmp_path / target)
    expected = POLICY.decide(logits, "logits")
    rows = read(tmp_path / target)
    assert list(rows[0]) == ["id", "decision", "predicted", "class", "confidence"]
    assert [row["id"] for row in rows] == [f"case-{row}" for row in range(50)]
    assert [row["decision"] for row in rows] == expected.decisions
    assert [int(row["predicted"]) for row in rows] == expected.predicted.tolist()
    assert [row["class"] for row in rows] == [NAMES[k] for k in expected.predicted]
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], expected.confidence, rtol=1e-12)
    assert (counts.cases, counts.automated) == (50, expected.automate.sum())


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.npz"])
def test_names_decide_over_the_order_of_columns(tmp_path, logits, block, source):
    shuffled = write(tmp_path / source, logits[:, [2, 0, 1]], names=("owl", "cat", "dog"), targets=False)
    route_file(POLICY, shuffled, tmp_path / "out.csv")
    expected = POLICY.decide(logits, "logits")
    assert [row["class"] for row in read(tmp_path / "out.csv")] == [NAMES[k] for k in expected.predicted]


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.npz"])
def test_rows_without_ids_are_numbered(tmp_path, logits, block, source):
    route_file(POLICY, write(tmp_path / source, logits, ids=False), tmp_path / "out.csv")
    assert [row["id"] for row in read(tmp_path / "out.csv")] == [str(row) for row in range(50)]


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.npz"])
def test_a_nameless_rule_takes_numbers_in_any_order_and_no_names(tmp_path, logits, source):
    rule = plain(0.8, 3)
    route_file(rule, write(tmp_path / source, logits[:, [2, 0, 1]], names=("2", "0", "1")), tmp_path / "out.csv")
    expected = rule.decide(logits, "logits")
    assert [int(row["predicted"]) for row in read(tmp_path / "out.csv")] == expected.predicted.tolist()
    with pytest.raises(InvalidInput, match=r"name the classes 0\.\.2, got cat, dog, owl\..*fit on predictions"):
        route_file(rule, write(tmp_path / source, logits), tmp_path / "none.csv")
    with pytest.raises(InvalidInput, match=r"name the classes 0\.\.2, got 3\."):
        route_file(rule, write(tmp_path / source, logits, names=("1", "2", "3")), tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()


def test_long_lists_of_names_say_that_they_go_on(tmp_path):
    rule = plain(0.8, 7, tuple("abcdefg"))
    path = write(tmp_path / "in.csv", np.zeros((1, 7)), names=tuple("tuvwxyz"))
    with pytest.raises(InvalidInput, match=r"name the classes a, b, c, d, e, \.\.\., got t, u, v, w, x, \.\.\."):
        route_file(rule, path, tmp_path / "out.csv")


def test_probabilities_too(tmp_path, logits):
    e = np.exp(logits)
    p = e / e.sum(axis=1, keepdims=True)
    route_file(POLICY, write(tmp_path / "in.parquet", p, prefix="probability_"), tmp_path / "out.parquet")
    np.testing.assert_allclose(
        [row["confidence"] for row in read(tmp_path / "out.parquet")],
        POLICY.decide(p, "probabilities").confidence,
        rtol=1e-12,
    )


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.npz"])
def test_scores_that_do_not_say_what_they_are(tmp_path, logits, source):
    path = write(tmp_path / source, logits, prefix="score_")
    if path.suffix == ".npz":
        np.savez(path, scores=logits)
    route_file(POLICY, path, tmp_path / "out.csv", kind="logits")
    expected = POLICY.decide(logits, "logits")
    assert [row["class"] for row in read(tmp_path / "out.csv")] == [NAMES[k] for k in expected.predicted]
    with pytest.raises(InvalidInput, match="be probabilities as you said, got logits by their name"):
        route_file(POLICY, write(tmp_path / "named.csv", logits), tmp_path / "out.csv", kind="probabilities")


def test_a_bad_cell_is_named_by_its_place_in_the_file(tmp_path, logits, block):
    path = write(tmp_path / "in.csv", logits, ids=False, targets=False)
    lines = path.read_text().splitlines()
    lines[38] = "1,2,many"
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidInput, match="got 'many' in row 37, column logit_owl"):
        route_file(POLICY, path, tmp_path / "out.csv")


def test_a_folder_is_called_a_folder(tmp_path):
    with pytest.raises(InvalidInput, match=r"source must be a file, or a folder"):
        route_file(POLICY, tmp_path, tmp_path / "out.csv")


def test_saved_predictions_of_a_nameless_model(tmp_path, draw):
    predictions = draw(200, 12)
    rule = plain(0.8, 12)
    for name in ("p.npz", "p.csv"):
        predictions.save(tmp_path / name)
        route_file(rule, tmp_path / name, tmp_path / "out.csv")
        assert [int(row["predicted"]) for row in read(tmp_path / "out.csv")] == predictions.predicted.tolist()


def test_column_order_in_memory_does_not_matter(tmp_path, logits):
    np.savez(tmp_path / "in.npz", logits=np.asfortranarray(logits))
    route_file(POLICY, tmp_path / "in.npz", tmp_path / "out.csv")
    assert [row["decision"] for row in read(tmp_path / "out.csv")] == POLICY.decide(logits, "logits").decisions


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.npz"])
def test_a_repeated_id_is_refused_and_nothing_is_written(tmp_path, logits, block, source):
    path = write(tmp_path / source, logits)
    ids = [f"case-{row}" for row in range(49)] + ["case-3"]
    if path.suffix == ".npz":
        np.savez(path, logits=logits, ids=np.array(ids))
    elif path.suffix == ".parquet":
        table = parquet.read_table(path)
        parquet.write_table(table.set_column(0, "id", pa.array(ids)), path)
    else:
        path.write_text(path.read_text().replace("case-49,", "case-3,"))
    (tmp_path / "out.csv").write_text("before")
    with pytest.raises(InvalidInput, match=r"in\.\w+: ids must be distinct, got 'case-3' again in row 49"):
        route_file(POLICY, path, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("prefix", ["logit_", "probability_"])
def test_a_calibrator_sees_logits_before_the_rule_does(tmp_path, logits, block, prefix):
    # Halving the logits takes the root of the probabilities; a probability of 0 stays 0.
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    probabilities[3] = [0.0, 0.8, 0.2]
    with np.errstate(divide="ignore"):
        scores = probabilities if prefix == "probability_" else np.maximum(np.log(probabilities), -1000.0)
    rule = RoutingRule(threshold=0.6, n_classes=3, class_names=NAMES)
    path = write(tmp_path / "in.csv", scores, prefix=prefix)
    counts = route_file(Policy(3, TemperatureScaling.known(2.0, 3), rule), path, tmp_path / "out.csv")
    roots = np.sqrt(probabilities)
    expected = (roots / roots.sum(axis=1, keepdims=True)).max(axis=1)
    found = [float(row["confidence"]) for row in read(tmp_path / "out.csv")]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert counts.automated == (expected >= 0.6).sum() < (probabilities.max(axis=1) >= 0.6).sum()


def test_a_kind_of_scores_can_be_refused_before_anything_is_written(tmp_path, logits):
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    targets = logits.argmax(axis=1) * (np.arange(len(logits)) % 4 > 0)
    calibrator = VectorScaling().fit(Predictions.from_probabilities(p, targets))
    with pytest.raises(InvalidInput, match="predictions must be probabilities"):
        route_file(Policy(3, calibrator, RULE), write(tmp_path / "in.csv", logits), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_probabilities_in_half_precision_are_taken_as_predictions_take_them(tmp_path, logits, block, precision):
    rounded = torch.from_numpy(logits / 4).softmax(dim=1).to(precision)
    assert (rounded.double().sum(dim=1) - 1).abs().max() > 1e-4
    predictions = Predictions.from_probabilities(rounded, np.zeros(len(logits), dtype=int), class_names=NAMES)
    predictions.save(tmp_path / "in.npz")
    rule = plain(0.6, 3, NAMES)
    counts = route_file(rule, tmp_path / "in.npz", tmp_path / "out.csv")
    assert counts.automated == (rounded.double().amax(dim=1) >= 0.6).sum()
    assert [int(row["predicted"]) for row in read(tmp_path / "out.csv")] == predictions.predicted.tolist()


def test_a_wrong_sum_is_named_by_its_place_in_the_file(tmp_path, logits, block):
    probabilities = np.full(logits.shape, 1 / 3)
    probabilities[37] = [0.5, 0.2, 0.2]
    with pytest.raises(InvalidInput, match=r"sum to 1 .* got 0\.9 in row 37"):
        route_file(POLICY, write(tmp_path / "in.npz", probabilities, prefix="probability_"), tmp_path / "out.csv")


def test_a_parquet_file_for_another_rule_is_said_to_be_that(tmp_path, logits):
    with pytest.raises(InvalidInput, match=r"^this rule or calibrator was made for 3 classes"):
        route_file(POLICY, write(tmp_path / "in.parquet", logits, names=("cat", "dog")), tmp_path / "out.csv")


def test_a_missing_score_is_named_by_its_row(tmp_path, logits):
    columns = {f"logit_{name}": logits[:, k].tolist() for k, name in enumerate(NAMES)}
    columns["logit_dog"][4] = None
    parquet.write_table(pa.table(columns), tmp_path / "in.parquet")
    with pytest.raises(InvalidInput, match="'logit_dog' must have a value in every row, got none in row 4"):
        route_file(POLICY, tmp_path / "in.parquet", tmp_path / "out.csv")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_every_layout_of_an_array_is_read(tmp_path, logits, block, order, version):
    narrow = np.asarray(logits, dtype=np.float32, order=order)
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive, archive.open("logits.npy", "w") as handle:
        np.lib.format.write_array(handle, narrow, version=version)
    route_file(plain(0.8, 3), tmp_path / "in.npz", tmp_path / "out.csv")
    assert [int(row["predicted"]) for row in read(tmp_path / "out.csv")] == logits.argmax(axis=1).tolist()


def test_bad_row_is_named_by_its_place_in_the_file(tmp_path, logits, block):
    spoiled = logits.copy()
    spoiled[37, 1] = np.nan
    with pytest.raises(InvalidInput, match="row 37"):
        route_file(POLICY, write(tmp_path / "in.npz", spoiled), tmp_path / "out.csv")


def test_unknown_endings(tmp_path, logits):
    (tmp_path / "in.txt").touch()
    with pytest.raises(InvalidInput, match=r"end in \.npz"):
        route_file(POLICY, tmp_path / "in.txt", tmp_path / "out.csv")
    with pytest.raises(InvalidInput, match="output must end in"):
        route_file(POLICY, write(tmp_path / "in.csv", logits), tmp_path / "out.npz")


@pytest.mark.parametrize("target", ["out.csv", "out.parquet"])
def test_a_shortlist_is_one_more_column_for_what_a_person_sees(tmp_path, logits, block, target):
    policy = replace(POLICY, shortlist=Shortlist(0.1, 3, 0.9, 0.9, NAMES, threshold=0.8))
    route_file(policy, write(tmp_path / "in.csv", logits), tmp_path / target)
    p = np.exp(logits / 1.7) / np.exp(logits / 1.7).sum(axis=1, keepdims=True)
    for row, values in zip(read(tmp_path / target), p, strict=True):
        order = np.argsort(-values)
        expected = [NAMES[k] for place, k in enumerate(order) if place == 0 or values[k] >= 0.1]
        expected = [] if row["decision"] == "auto" else expected
        assert json.loads(row["shortlist"] or "[]") == expected


@pytest.mark.parametrize("target", ["out.csv", "out.parquet"])
def test_a_missing_id_is_refused_wherever_it_stands(tmp_path, logits, block, target):
    path = write(tmp_path / "in.parquet", logits)
    ids = pa.array([*(f"case-{row}" for row in range(40)), None, *(f"case-{row}" for row in range(41, 50))])
    parquet.write_table(parquet.read_table(path).set_column(0, "id", ids), path)
    with pytest.raises(InvalidInput, match="column 'id' must have a value in every row, got none in row 40"):
        route_file(POLICY, path, tmp_path / target)
    assert not (tmp_path / target).exists()


def test_formulas_in_csv_are_shown_and_not_run(tmp_path, logits):
    """Ids and class names that a spreadsheet would run begin with an apostrophe; numbers stay as they are."""
    names = ("=HYPERLINK(1)", "@dog", "owl")
    rule = plain(0.8, 3, names)
    hostile = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "-5", "+3.2e4", "plain", "a=b", ""]
    ids = [*hostile, *(f"case-{row}" for row in range(len(hostile), 50))]
    np.savez(tmp_path / "in.npz", logits=logits, ids=np.array(ids), class_names=np.array(names))
    route_file(rule, tmp_path / "in.npz", tmp_path / "out.csv")
    rows = read(tmp_path / "out.csv")
    assert [row["id"] for row in rows[:10]] == [*(f"'{text}" for text in hostile[:5]), *hostile[5:]]
    assert {row["class"] for row in rows} == {"'=HYPERLINK(1)", "'@dog", "owl"}
    route_file(rule, tmp_path / "in.npz", tmp_path / "out.parquet")
    assert [row["id"] for row in read(tmp_path / "out.parquet")] == ids


@pytest.mark.parametrize("text", ["=1+1", "'=1+1", "''=1+1", "'-5", "-5", "'", "it's", "'quoted'", "\t", "'@"])
def test_a_guarded_id_is_read_back_as_it_was(text):
    """The ids =1+1 and '=1+1 were written as the same text."""
    assert unguarded(guarded(text)) == text


def test_a_folder_of_parts_is_routed_as_one_file(tmp_path, logits):
    (tmp_path / "parts").mkdir()
    for k, rows in enumerate((slice(0, 20), slice(20, 50))):
        write(tmp_path / "parts" / f"{k}.parquet", logits[rows], ids=False)
    counts = route_file(POLICY, tmp_path / "parts", tmp_path / "out.parquet")
    found = read(tmp_path / "out.parquet")
    assert (counts.cases, [row["id"] for row in found]) == (50, list(range(50)))
    assert [row["decision"] for row in found] == POLICY.decide(logits, "logits").decisions


def test_the_column_of_ids_can_be_named(tmp_path, logits):
    path = write(tmp_path / "in.csv", logits)
    path.write_text(path.read_text().replace("id,", "case,", 1))
    route_file(POLICY, path, tmp_path / "out.csv", columns={"id": "case"})
    assert read(tmp_path / "out.csv")[7]["id"] == "case-7"


@pytest.mark.parametrize("target", ["out.csv", "out.parquet"])
def test_a_killed_process_leaves_nothing_behind(tmp_path, logits, python, target):
    """Killed after some blocks were written, as its output says."""
    write(tmp_path / "in.npz", np.tile(logits, (1000, 1)), ids=False)
    POLICY.save(tmp_path / "policy.json")
    code = (
        "import time, sys\n"
        "from calibrant.predictions import columns\n"
        "from calibrant.decisions import Policy, route_file\n"
        "columns._BLOCK_CELLS, made = 3000, []\n"
        "def slow(*arguments, find=Policy.probabilities, **settings):\n"
        "    made.append(1)\n"
        "    if len(made) == 20:\n"
        "        print('half', flush=True)\n"
        "        time.sleep(60)\n"
        "    return find(*arguments, **settings)\n"
        "Policy.probabilities = slow\n"
        f"route_file(Policy.load({str(tmp_path / 'policy.json')!r}), *sys.argv[1:])\n"
    )
    arguments = [python, "-c", code, str(tmp_path / "in.npz"), str(tmp_path / target)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "policy.json"]


@pytest.mark.parametrize("ids", ["numbers", "negative", "text", "odd"])
def test_csv_holds_the_decisions_exactly(tmp_path, block, ids):
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(200, 3)) * 10
    scores[:3] = [[900, 0, 0], [0, 0, 0], [40, 3, 1]]  # a confidence of 1, of a third, and just below 1
    odd = [f"{k}" for k in range(200)]
    odd[7::50] = [f'a "{k}", b' for k in range(4)]
    odd[9::50] = [f"={k}()" for k in range(4)]
    names = {
        "numbers": np.arange(200),
        "negative": -np.arange(200),
        "text": np.array([f"case ü {k}" for k in range(200)]),
        "odd": np.array(odd),
    }[ids]
    np.savez(tmp_path / "in.npz", logits=scores, ids=names)
    rule = plain(0.8, 3)
    route_file(rule, tmp_path / "in.npz", tmp_path / "out.csv")
    routed, rows = rule.decide(scores, "logits"), read(tmp_path / "out.csv")
    assert [row["id"].removeprefix("'") for row in rows] == [str(name) for name in names]
    assert [row["id"].startswith("'") for row in rows] == [str(name).startswith("=") for name in names]
    assert [row["decision"] for row in rows] == routed.decisions
    assert [float(row["confidence"]) for row in rows] == routed.confidence.tolist()


def test_tiny_confidences_are_written_exactly(tmp_path):
    np.savez(tmp_path / "in.npz", logits=np.zeros((2, 20_000)))
    rule = plain(0.8, 20_000)
    route_file(rule, tmp_path / "in.npz", tmp_path / "out.csv")
    assert float(read(tmp_path / "out.csv")[0]["confidence"]) == 5e-05
