"""Weighted metrics against rows that are repeated, and against plain loops for weights that are no whole numbers."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.metrics import (
    accuracy,
    aurc,
    auroc,
    brier_score,
    classwise_calibration_error,
    confident_set,
    debiased_calibration_error,
    equal_mass_calibration_error,
    error_rate,
    expected_calibration_error,
    ks_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    noise_floor,
    reliability_bins,
    smooth_calibration_error,
)
from calibrant.metrics.clusters import Sample

METRICS = {
    "test_error": error_rate,
    "nll": negative_log_likelihood,
    "brier": brier_score,
    "ece": expected_calibration_error,
    "ece_equal_mass": equal_mass_calibration_error,
    "mce": maximum_calibration_error,
    "classwise_ece": classwise_calibration_error,
    "smooth_ece": smooth_calibration_error,
    "debiased_ece": debiased_calibration_error,
    "ks": ks_calibration_error,
    "auroc": auroc,
    "aurc": aurc,
}


def draw(n=300, seed=0, *, ties=False):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, 3))
    z = z.round() if ties else z
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return Predictions.from_logits(z, y, extras={"w": rng.random(n) + 0.2, "patient": np.arange(n) // 3})


@pytest.mark.parametrize("ties", [False, True])
# Rows that come twice are no new rows to the debiased error: see the next test.
@pytest.mark.parametrize("name", [name for name in METRICS if name != "debiased_ece"])
def test_a_weight_of_two_is_a_row_that_comes_twice(name, ties):
    """Metrics whose definition counts rows are scaled to as many rows, so weights with a mean of 1 are used."""
    cases = draw(240, 1, ties=ties)
    counts = np.tile([0, 1, 2, 1], 60)
    often = cases.subset(np.repeat(np.arange(240), counts))
    assert METRICS[name](cases, weights=counts) == pytest.approx(METRICS[name](often), abs=1e-10)


def test_debiased_error_takes_the_effective_number_of_rows():
    cases, n_bins = draw(200, 2), 4
    weights = np.asarray(cases.extras["w"]) / np.mean(cases.extras["w"])
    bins = reliability_bins(cases, n_bins, equal_mass=True, weights="w")
    total = 0.0
    for low, high in zip(bins.edges[:-1], bins.edges[1:], strict=True):
        own = (cases.confidence > low) & (cases.confidence <= high)
        w = weights[own]
        mean, right = (w * cases.confidence[own]).sum() / w.sum(), (w * cases.correct[own]).sum() / w.sum()
        effective = w.sum() ** 2 / (w**2).sum()
        total += w.sum() * ((mean - right) ** 2 - right * (1 - right) / (effective - 1))
    assert debiased_calibration_error(cases, n_bins, weights="w") == pytest.approx(np.sqrt(max(0, total / 200)))


def test_real_weights_against_plain_loops():
    cases = draw(150, 3, ties=True)
    w = np.asarray(cases.extras["w"]) / np.mean(cases.extras["w"])
    assert accuracy(cases, weights="w") == pytest.approx(1 - error_rate(cases, weights="w"))
    gaps = [
        abs(
            (w * (cases.confidence - cases.correct))[
                (cases.confidence > k / 15) & (cases.confidence <= (k + 1) / 15)
            ].sum()
        )
        for k in range(15)
    ]
    assert expected_calibration_error(cases, weights="w") == pytest.approx(sum(gaps) / 150)
    beaten = pairs = 0.0
    for i in np.flatnonzero(cases.correct):
        for j in np.flatnonzero(~cases.correct):
            pairs += w[i] * w[j]
            better = (cases.confidence[i] > cases.confidence[j]) + 0.5 * (cases.confidence[i] == cases.confidence[j])
            beaten += w[i] * w[j] * better
    assert auroc(cases, weights="w") == pytest.approx(beaten / pairs)
    ks = max(abs((w * (cases.confidence - cases.correct))[cases.confidence <= t].sum()) for t in cases.confidence) / 150
    assert ks_calibration_error(cases, weights="w") == pytest.approx(ks)
    inside = cases.confidence >= 0.8
    chosen = confident_set(cases, 0.8, weights="w")
    assert chosen.share == pytest.approx(w[inside].sum() / 150)
    assert chosen.accuracy == pytest.approx((w * cases.correct)[inside].sum() / w[inside].sum())


def test_aurc_of_real_weights_is_the_limit_of_whole_ones():
    """Weights in tenths, as rows of a tenth each, counted in the harmonic sums by digamma."""
    from scipy.special import digamma

    cases = draw(60, 4)
    w = np.asarray(cases.extras["w"]) / np.mean(cases.extras["w"])
    order = np.argsort(-cases.confidence)
    above = wrong = total = 0.0
    for i in order:
        rate = float(not cases.correct[i])
        total += rate * w[i] + (wrong - above * rate) * (digamma(above + w[i] + 1) - digamma(above + 1))
        above, wrong = above + w[i], wrong + rate * w[i]
    assert aurc(cases, weights="w") == pytest.approx(total / 60)


def test_rows_without_weight_do_not_count():
    cases = Predictions.from_probabilities([[1.0, 0.0], [0.7, 0.3], [0.6, 0.4]], [1, 0, 1])
    assert negative_log_likelihood(cases) == np.inf
    kept = cases.subset([1, 2])
    for name, metric in METRICS.items():
        if name != "aurc":  # as many rows as there are: 3 and 2
            assert metric(cases, weights=[0, 1, 1]) == pytest.approx(metric(kept)), name


def test_noise_floor_of_weights_is_that_of_simulated_rows():
    cases = draw(400, 5)
    plain, weighted = noise_floor(cases), noise_floor(cases, weights=np.ones(400))
    assert weighted.mean == pytest.approx(plain.mean, rel=0.1)
    uneven = noise_floor(cases, weights=np.random.default_rng(0).exponential(size=400) ** 2)
    assert uneven.mean > 1.2 * plain.mean


def share_interval(hits, weights, clusters, level):
    return Sample(weights, clusters, n_resamples=20, seed=0, level=level).share(hits, np.ones(len(hits), bool))


def test_share_interval_of_independent_equal_rows_is_exact_but_for_students_t():
    from calibrant.metrics.intervals import exact_interval

    hits = np.arange(400) < 80
    low, high = share_interval(hits, np.ones(400), np.arange(400), 0.95)
    assert (low, high) == pytest.approx(tuple(map(float, exact_interval(80, 400))), abs=2e-3)
    assert share_interval(np.zeros(50, bool), np.ones(50), np.arange(50) // 5, 0.95)[1] > 0.2


def test_share_interval_counts_with_a_heavy_error_that_chance_left_out():
    """Of 40 heavy rows none is wrong: up to 7 % of them may be all the same, and they have half of the weight."""
    weights = np.r_[np.full(40, 5.0), np.full(360, 0.5556)]
    hits = np.arange(400) == 399
    low, high = share_interval(hits, weights, np.arange(400), 0.95)
    assert low < 0.0014 < 0.035 < high < 0.07


def test_intervals_by_cluster_are_wider_where_rows_repeat_each_other():
    once = draw(200, 6)
    repeated = once.subset(np.repeat(np.arange(200), 4))
    patient = np.repeat(np.arange(200), 4)
    plain = evaluate(once, n_resamples=200).intervals
    naive, honest = (
        evaluate(repeated, n_resamples=200, **settings).intervals for settings in ({}, {"clusters": patient})
    )
    for name in ("test_error", "nll", "brier", "auroc", "share@0.95"):
        widths = [ends[name][1] - ends[name][0] for ends in (plain, naive, honest)]
        assert widths[2] == pytest.approx(widths[0], rel=0.2), name
        assert widths[1] < 0.65 * widths[2], name
    assert "ece" not in honest
    assert evaluate(repeated, clusters=patient).ece == evaluate(repeated).ece


@pytest.mark.parametrize("what", ["weights", "clusters"])
def test_intervals_cover(what):
    """Of 150 draws, the share whose interval of the test error holds the truth; slightly more than stated is fine."""
    held = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        if what == "weights":
            # Half of the stream is class 0, a tenth of the sample is; class 0 is wrong in 30 %, class 1 in 10 %.
            y = (rng.random(500) < 0.9).astype(int)
            right = rng.random(500) < np.where(y == 0, 0.7, 0.9)
            settings, truth = {"weights": np.where(y == 0, 0.5 / 0.1, 0.5 / 0.9)}, 0.2
        else:
            # Patients differ: their pictures are wrong with probabilities that have a mean of 0.2.
            hard = rng.beta(0.5, 2.0, size=60)
            y, patient = np.zeros(600, dtype=int), np.arange(600) // 10
            right, settings, truth = rng.random(600) > hard[patient], {"clusters": patient}, 0.2
        predicted = np.where(right, y, 1 - y)
        probabilities = np.where(predicted[:, None] == [0, 1], 0.8, 0.2)
        result = evaluate(Predictions.from_probabilities(probabilities, y), n_resamples=20, **settings)
        low, high = result.intervals["test_error"]
        held += low <= truth <= high
    assert held >= 0.9 * 150


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "hold 300 values"),
        (np.full(300, -1.0), "not negative"),
        (np.zeros(300), "not all 0"),
        (np.full(300, np.nan), "be finite"),
        ("nothing", "be a column of the predictions"),
        (["x"] * 300, "be numbers"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(InvalidInput, match=message):
        evaluate(draw(), weights=weights)
