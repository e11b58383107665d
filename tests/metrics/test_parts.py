"""Metrics from sums over parts are those of all rows on one machine."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.metrics import Evaluation, evaluate_parts
from calibrant.scale import Processes


def write_parts(folder, rows, *, kind="probabilities", dtype=np.float32, classes=4, seed=0, names=None):
    """Parts of unequal size; the whole as predictions."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(rows, classes))
    targets = (logits + 2 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    scores = (logits if kind == "logits" else np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(dtype)
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probabilities
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), [rows // 7, rows // 7 + 1, rows // 2])):
        make(scores[part], targets[part], class_names=names).save(folder / f"part-{number:02}.parquet")
    return make(scores, targets, class_names=names)


@pytest.mark.parametrize(("kind", "dtype"), [("probabilities", np.float32), ("logits", np.float64)])
@pytest.mark.parametrize("executor", [None, Processes()], ids=["none", "processes"])
def test_parts_give_the_numbers_of_one_machine(tmp_path, kind, dtype, executor):
    whole = write_parts(tmp_path / "parts", 60_000, kind=kind, dtype=dtype)
    settings = {"n_bins": 10, "thresholds": (0.5, 0.95, 1.0), "seed": 3}
    expected = evaluate(whole, **settings)
    found = evaluate_parts(tmp_path / "parts", **settings, executor=executor)
    assert (found.n, found.n_classes, found.n_bins) == (60_000, 4, 10)
    for name, value in expected.values().items():
        if value is None:
            assert found.values()[name] is None, name
            continue
        assert found.values()[name] == pytest.approx(value, rel=1e-12, abs=1e-14), name
    assert found.balanced_error == pytest.approx(expected.balanced_error, rel=1e-12)
    assert Evaluation.from_dict(found.to_dict()) == found


def test_targets_are_read_alike_in_all_parts(tmp_path):
    """Classes called 1, 2, 3: whether a target 1 is a name or a number is known from all parts only."""
    import pyarrow as pa
    from pyarrow import parquet

    folder = tmp_path / "parts"
    folder.mkdir()
    for number, targets in enumerate([[1, 2], [0, 1]]):
        columns = {"target": targets} | {f"logit_{name}": [0.0, float(name)] for name in (1, 2, 3)}
        parquet.write_table(pa.table(columns), folder / f"{number}.parquet")
    assert evaluate_parts(folder).test_error == evaluate(Predictions.load(folder)).test_error


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda table: table.drop_columns(["target"]), "have targets"),
        (lambda table: table.slice(0, 0), "at least one row"),
        (lambda table: table.set_column(0, "target", [[9] * len(table)]), "0..3"),
        (lambda table: table.set_column(1, "probability_0", [[2.0] * len(table)]), r"0\.parquet: .*row 0"),
    ],
)
def test_bad_parts_are_one_line(tmp_path, change, fault):
    import pyarrow.parquet as parquet

    write_parts(tmp_path / "all", 100)
    (tmp_path / "parts").mkdir()
    table = parquet.read_table(tmp_path / "all" / "part-00.parquet")
    parquet.write_table(change(table), tmp_path / "parts" / "0.parquet")
    with pytest.raises(InvalidInput, match=fault):
        evaluate_parts(tmp_path / "parts")


def test_a_class_and_its_confidence_are_read_in_parts(tmp_path):
    rng = np.random.default_rng(0)
    confidence, truth = rng.random(500), rng.integers(3, size=500).astype(str)
    whole = Predictions.from_confidence(np.full(500, "1"), confidence, truth)
    for number, part in enumerate(np.array_split(np.arange(500), 3)):
        (tmp_path / "parts").mkdir(exist_ok=True)
        whole.subset(part).save(tmp_path / "parts" / f"{number}.parquet")
    found, expected = evaluate_parts(tmp_path / "parts").to_dict(), evaluate(whole).to_dict()
    assert found["ece"] == pytest.approx(expected["ece"], rel=1e-12)
    assert (found["nll"], found["test_error"]) == (None, expected["test_error"])


def test_scores_that_are_only_ranked_are_not_read_in_parts(tmp_path):
    (tmp_path / "a.csv").write_text("predicted,score,target\ncat,3,cat\ndog,-1,cat\n")
    with pytest.raises(InvalidInput, match="only ranked"):
        evaluate_parts(tmp_path / "a.csv", kind="score")


def test_large_parts_stay_on_disk(tmp_path, monkeypatch):
    whole = write_parts(tmp_path / "parts", 1000)
    monkeypatch.setattr("calibrant.predictions.reader._LARGE", 0)
    assert evaluate_parts(tmp_path / "parts").ece == pytest.approx(evaluate(whole).ece, rel=1e-12)
