import numpy as np
import pytest

from calibrant.report import read_entries
from calibrant.report.audit import pruning_content
from calibrant.runs import load_audit, save_audit


def test_shares_savings_and_suspects(run_folder):
    content = pruning_content(*read_entries(run_folder))
    assert content["epochs"] == [1, 2, 3]
    assert content["overall"] == [1.0, 0.8, 0.8]
    assert content["classes"] == [[1.0, 0.8, 0.8]] * 2
    assert (content["seen"], content["full"], content["kept_last"], content["samples"]) == (52, 60, 16, 20)
    assert content["saved_share"] == pytest.approx(8 / 60)
    # Surest first; the names are those of the predictions only where their number fits (10 digits, 2 classes here).
    assert {(s["identity"], s["picture"]) for s in content["suspects"]} == {("sample 12", None), ("sample 3", None)}
    assert [(s["index"], s["label"], s["predicted"], s["excess"], s["left"]) for s in content["suspects"]] == [
        (12, "1", "0", 0.75, -1),
        (3, "0", "1", 0.25, -1),
    ]


def test_many_classes_become_the_lowest_and_the_highest(run_folder):
    audit = load_audit(run_folder / "pruning.npz")
    counts = np.stack([np.full(40, 10), np.arange(40) % 9 + 1])
    fields = {name: getattr(audit, name) for name in audit.__dataclass_fields__}
    fields |= {"kept_counts": counts, "class_sizes": np.full(40, 10)}
    save_audit(run_folder / "pruning.npz", type(audit)(**fields))
    content = pruning_content(*read_entries(run_folder))
    assert content["names"] == ["lowest of 40 classes", "highest of 40 classes"]
    assert content["classes"] == [[1.0, 0.1], [1.0, 0.9]]


def test_no_pruning_is_no_section(run_folder, predictions):
    assert pruning_content(*read_entries(predictions)) is None
    audit = load_audit(run_folder / "pruning.npz")
    fields = {name: getattr(audit, name) for name in audit.__dataclass_fields__}
    save_audit(run_folder / "pruning.npz", type(audit)(**fields | {"kept_counts": np.full((3, 2), 10)}))
    assert pruning_content(*read_entries(run_folder)) is None
    (run_folder / "pruning.npz").unlink()
    assert pruning_content(*read_entries(run_folder)) is None
