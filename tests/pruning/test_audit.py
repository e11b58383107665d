"""Which samples left, when and why: the report, the file, and wrong labels that were planted."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.errors import InvalidInput, OutputError
from calibrant.pruning import ConfidencePruner, Every, Indexed, LowestConfidence, Unbiased, load_audit

LABELS = np.repeat([0, 1], [12, 8])


@pytest.fixture
def pruner():
    """Three epochs: everything, then a quarter of each class less, then again."""
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.25), schedule=Every(1), seed=1)
    logits = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        indices = pruner.order()
        pruner.observe(indices, logits[indices])
        pruner.step()
    return pruner


def test_epochs_are_counted_exactly(pruner):
    assert pruner.kept_by_epoch == [20, 15, 12]  # 12 + 8, 9 + 6, 7 + 5
    assert np.bincount(LABELS[pruner.kept]).tolist() == [6, 4]
    assert ConfidencePruner(LABELS).kept_by_epoch == []


def test_the_file_holds_which_samples_left_when_and_with_what_score(pruner, tmp_path):
    path = tmp_path / "runs" / "pruning.npz"
    pruner.save(path)
    audit = load_audit(path)
    assert audit.target.tolist() == LABELS.tolist()
    assert np.flatnonzero(audit.kept).tolist() == pruner.kept.tolist()
    assert [int((audit.left == epoch).sum()) for epoch in (-1, 1, 2, 3)] == [10, 5, 3, 2]
    assert (audit.left[audit.kept] == -1).all()
    # A sample that left after epoch e was seen e times.
    assert audit.count.tolist() == [3 if left < 0 else left for left in audit.left]
    assert audit.score.tolist() == pruner.scores.tolist()
    assert audit.kept_counts.tolist() == [[12, 8], [9, 6], [7, 5]]
    assert audit.kept_share[1].tolist() == [0.75, 0.75]
    assert audit.settings == pruner.settings()
    assert set(audit.predicted) <= {0, 1}
    # Those that left had the lowest scores of their class at the time, and keep them.
    first = audit.left == 1
    for k in (0, 1):
        mine = audit.target == k
        latest = audit.score[mine & first] / (1 - 0.7)
        others = audit.score[mine & ~first] / (1 - 0.7 ** audit.count[mine & ~first])
        assert latest.max() <= others.min() + 1e-6


def test_a_class_without_samples_has_no_share():
    pruner = ConfidencePruner([0, 0], n_classes=2)
    pruner.step()
    assert np.isnan(pruner.audit().kept_share[0, 1])


@pytest.mark.parametrize("content", [b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"must be (a whole \.npz file|written by pruner\.save)"):
        load_audit(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", np.zeros(20)),
        ("target", np.full(20, 7)),
        ("target", np.zeros((20, 1), int)),
        ("left", np.full(20, "a")),
        ("left", np.full(20, -2)),
        ("score", np.full(20, np.nan)),
        ("excess", np.zeros(3)),
        ("predicted", np.full(20, 2)),
        ("kept", np.zeros(20, int)),
        ("kept_counts", np.int64(3)),
        ("kept_counts", np.zeros((3, 5), int)),
        ("class_sizes", np.zeros(0, int)),
    ],
)
def test_right_names_with_wrong_types_are_refused(pruner, tmp_path, name, value):
    path = tmp_path / "x.npz"
    pruner.save(path)
    np.savez(path, **{**dict(np.load(path)), name: value})
    with pytest.raises(InvalidInput, match=r"x\.npz must"):
        load_audit(path)


@pytest.mark.parametrize("header", [{"format": 1}, {"format": 1, "settings": 3}])
def test_settings_that_are_none_are_refused(pruner, tmp_path, header):
    path = tmp_path / "x.npz"
    pruner.save(path)
    np.savez(path, **{**dict(np.load(path)), "header": np.array(json.dumps(header))})
    with pytest.raises(InvalidInput, match="at 'settings'"):
        load_audit(path)


def test_pickles_and_newer_formats_are_refused(pruner, tmp_path):
    path = tmp_path / "x.npz"
    pruner.save(path)
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "left": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(InvalidInput, match=r"x\.npz: left must be a plain array"):
        load_audit(path)
    np.savez(path, **{**arrays, "header": np.array(json.dumps({"format": 99}))})
    with pytest.raises(InvalidInput, match="at 'format'"):
        load_audit(path)
    with pytest.raises(InvalidInput, match="does not exist"):
        load_audit(tmp_path / "nowhere.npz")


def test_the_name_says_what_the_file_is(pruner, tmp_path):
    with pytest.raises(InvalidInput, match=r"path must end in \.npz, as the record is a NumPy archive, got .*pr\.csv"):
        pruner.save(tmp_path / "pr.csv")
    assert not any(tmp_path.iterdir())


def test_a_failed_write_is_one_clear_line(pruner, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        pruner.save(tmp_path / "file" / "pruning.npz")


def test_suspects_are_confidently_given_another_class():
    pruner = ConfidencePruner([0, 0, 1, 1, 1], ema=1.0)
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [4.0, 0.0], [4.0, 0.0]])
    pruner.observe(torch.arange(5), logits)
    audit = pruner.audit()
    assert audit.suspects().tolist() == [3, 4, 1]
    assert (audit.target[3], audit.predicted[3]) == (1, 0)
    p = torch.softmax(logits, 1)
    assert audit.excess[1] == pytest.approx((p[1, 1] - p[1, 0]).item(), abs=1e-5)
    assert audit.suspects(1).tolist() == [3]


def test_equal_suspects_stand_in_the_order_of_the_data():
    pruner = ConfidencePruner([0, 1] * 200)
    sure_of_class_1, surer = torch.tensor([0.0, 2.0]), torch.tensor([0.0, 3.0])
    pruner.observe(torch.arange(400), torch.stack([surer if i % 50 == 0 else sure_of_class_1 for i in range(400)]))
    wrong = range(0, 400, 2)
    expected = sorted(wrong, key=lambda i: i % 50 != 0)
    assert pruner.audit().suspects(500).tolist() == expected
    assert len(pruner.audit().suspects()) == 100


def planted_digits(seed):
    """The handwritten digits with one label in twenty wrong."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rng = np.random.default_rng(seed)
    wrong = rng.choice(len(digits.target), len(digits.target) // 20, replace=False)
    labels = digits.target.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, 10, len(wrong))) % 10
    return torch.from_numpy(digits.data / 16).float(), torch.from_numpy(labels), set(wrong.tolist())


@pytest.mark.parametrize(
    "options",
    [{}, {"policy": LowestConfidence(0.1), "schedule": Every(4)}, {"policy": Unbiased()}],
    ids=["all data", "paper", "unbiased"],
)
def test_most_planted_wrong_labels_are_found(options):
    images, labels, wrong = planted_digits(seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    pruner = ConfidencePruner(labels, seed=0, **options)
    loader = DataLoader(Indexed(TensorDataset(images, labels)), batch_size=64, sampler=pruner.sampler())
    for _ in range(12):
        for x, y, i in loader:
            logits = model(x)
            loss = (nn.functional.cross_entropy(logits, y, reduction="none") * pruner.weights(i)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            pruner.observe(i, logits)
        pruner.step()
    suspects = set(pruner.audit().suspects(len(wrong)).tolist())
    # 89 planted among 1,797; a list of the same length by chance would hold 4 or 5.
    assert len(suspects & wrong) > 0.8 * len(wrong)


def test_a_notebook_shows_what_was_saved(pruner, notebook_rows):
    rows = dict(notebook_rows(pruner.audit()))
    assert rows["sample updates"] == "47 of 60"
    assert rows["train in the coming epoch"] == f"{pruner.n_kept:,}"
