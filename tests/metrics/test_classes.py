import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.metrics import evaluate_classes


def draw(n=400, classes=4, seed=0, missing=False):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * 2
    targets = np.where(rng.random(n) < 0.6, logits.argmax(axis=1), rng.choice(classes, n, p=[0.7, 0.1, 0.1, 0.1]))
    if missing:
        targets = np.where(targets == 3, 0, targets)
    return Predictions.from_logits(logits, targets)


def by_hand(p, k, n_bins, weights):
    """One class, row by row."""
    rows = size = wrong = predicted = 0
    gap, bins = 0.0, [0.0] * n_bins
    for row, target, weight in zip(p.probabilities, p.targets, weights, strict=True):
        rows += target == k
        size += weight * (target == k)
        wrong += weight * (target == k and row.argmax() != k)
        predicted += row.argmax() == k
        gap += weight * (row[k] - (target == k))
        place = next(j for j in range(n_bins) if row[k] <= (j + 1) / n_bins)
        bins[place] += weight * (row[k] - (target == k))
    error = wrong / size if size else None
    return rows, error, predicted, gap / weights.sum(), sum(map(abs, bins)) / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_every_class_is_what_a_loop_says(missing, weighted):
    p = draw(missing=missing)
    weights = np.random.default_rng(1).exponential(size=len(p)) if weighted else None
    found = evaluate_classes(p, 10, weights=weights)
    for k, each in enumerate(found.classes):
        rows, error, predicted, gap, ece = by_hand(p, k, 10, np.ones(len(p)) if weights is None else weights)
        assert (each.name, each.n, each.predicted) == (str(k), rows, predicted)
        assert each.error == pytest.approx(error) if rows else each.error is None
        assert (each.gap, each.ece) == (pytest.approx(gap), pytest.approx(ece))
    known = [each.error for each in found.classes if each.n]
    assert found.balanced_error == pytest.approx(sum(known) / len(known))
    assert np.mean([each.ece for each in found.classes]) == pytest.approx(
        evaluate(p, n_bins=10, weights=weights).classwise_ece
    )


def test_a_class_without_weight_has_no_error():
    p = draw()
    found = evaluate_classes(p, weights=p.targets != 2)
    assert (found.classes[2].error, found.classes[2].n) == (None, int((p.targets == 2).sum()))
    others = [found.classes[k].error for k in (0, 1, 3)]
    assert found.balanced_error == pytest.approx(np.mean(others))


def test_always_naming_the_frequent_class_has_a_small_error_and_a_large_balanced_one():
    targets = np.r_[np.zeros(97, int), np.ones(3, int)]
    p = Predictions.from_probabilities(np.tile([0.97, 0.03], (100, 1)), targets, class_names=["well", "ill"])
    found = evaluate_classes(p)
    assert (evaluate(p).test_error, found.balanced_error) == (pytest.approx(0.03), 0.5)
    assert found.worst.name == "ill"
    assert found.describe() == "balanced error 50.00 % (each class counts alike); worst: ill, 100.00 % of 3"
    assert found.classes[1].gap == pytest.approx(0.0)


def test_a_notebook_shows_one_row_for_each_class_and_counts_the_rest(notebook_rows):
    found = evaluate_classes(draw())
    headings, *rows = notebook_rows(found)
    assert (headings[:2], [row[0] for row in rows]) == (["class", "cases"], ["0", "1", "2", "3"])
    assert rows[1][1] == str(found.classes[1].n)
    assert repr(found).startswith("ClassEvaluation: balanced error")
    many = Predictions.from_probabilities(np.full((30, 30), 1 / 30), np.arange(30))
    rows = notebook_rows(evaluate_classes(many))
    assert (len(rows), rows[-1][0]) == (22, "10 more")
