import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InvalidInput
from calibrant.studies.sweeps import (
    _USUAL,
    Categorical,
    Range,
    RungReporter,
    TrialStopped,
    figures_at_rungs,
    is_dominated,
    recipe_key,
    rungs,
    search_space,
)
from calibrant.training import Reporter, Run, methods, paper_recipe
from calibrant.training.methods.method_table import PRUNING


def test_by_default_the_methods_own_settings_with_a_usual_range():
    assert set(search_space("flsd+h+unbiased")) == {"huber_weight", "share", "drop"}
    assert set(search_space("ls")) == {"label_smoothing"}


def test_usual_ranges_belong_to_settings_that_exist():
    composed = [f"nll+{plan}" for plan in PRUNING]
    known = {key for name in (*methods.names(), *composed) for key in methods.describe(name).settings}
    assert set(_USUAL) <= known


def test_words():
    found = search_space(
        "flsd+h", ["optimiser.batch_size=32:128:log", "optimiser.lr=0.01:1", "schedule.kind=step,cosine"]
    )
    assert found == {
        "optimiser.batch_size": Range(32, 128, log=True),
        "optimiser.lr": Range(0.01, 1.0),
        "schedule.kind": Categorical(("step", "cosine")),
    }
    assert recipe_key("optimiser.lr") == "optimiser.lr"
    assert recipe_key("huber_weight") == "method.options.huber_weight"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("huber_wieght", "Did you mean 'huber_weight'"),
        ("optimiser.lr", "has no usual one"),
        ("huber_weight=5:1", "LOW < HIGH"),
        ("huber_weight=0:1:log", "begin above 0"),
        ("huber_weight=1:2:lin", "LOW:HIGH:log"),
        ("huber_weight=a:b", "LOW < HIGH"),
        ("huber_weight=3", "offer at least two values"),
        ("drop", "name a setting of the method"),
        ("zzz=1:2", "engine.*; a run's recipe.toml shows all."),
    ],
)
def test_bad_words(word, message):
    with pytest.raises(InvalidInput) as caught:
        search_space("flsd+h", [word])
    assert message in str(caught.value)


def test_a_method_without_settings_needs_a_word():
    with pytest.raises(InvalidInput, match="Say what to vary"):
        search_space("nll")


figures = st.tuples(*(st.integers(0, 4).map(float),) * 3)


@given(figures, st.lists(figures, max_size=8), st.integers(1, 4))
def test_dominated_means_enough_finished_trials_better_in_error_and_ece_and_no_dearer(mine, others, dominators):
    better = [o for o in others if o[0] < mine[0] and o[1] < mine[1] and o[2] <= mine[2]]
    assert is_dominated(mine, others, dominators=dominators) == (len(better) >= dominators)


def test_three_better_trials_are_needed_unless_told():
    better = (0.1, 0.01, 900.0)
    assert [is_dominated((0.2, 0.02, 1000.0), [better] * n) for n in (2, 3)] == [False, True]
    assert is_dominated((0.2, 0.02, 900.0), [better] * 3)  # after as many samples
    assert not is_dominated((0.2, 0.02, 899.0), [better] * 3)


@given(st.lists(figures, min_size=1, max_size=8))
def test_nobody_on_the_front_is_dominated(points):
    front = [p for p in points if not any(all(a <= b for a, b in zip(q, p, strict=True)) and q != p for q in points)]
    assert front
    assert not any(is_dominated(point, points, dominators=1) for point in front)


@given(st.integers(1, 300))
def test_rungs_lie_inside_the_training(epochs):
    assert all(0 < rung < epochs for rung in rungs(epochs))
    assert len(rungs(epochs)) == min(3, epochs - 1)


def line(epoch, samples=100):
    return {
        "epoch": epoch,
        "samples": samples,
        "validation": {"accuracy": 0.9, "ece": 0.02},
        "kept": 100,
        "lr": 0.1,
        "kept_share": 1.0,
        "loss": 0.5,
        "terms": {},
        "accuracy": 0.9,
        "ece": 0.1,
        "train_seconds": 1.0,
        "seconds": 1.0,
        "samples_per_second": 100.0,
        "image_size": [8, 8],
        "flops": 1.0,
    }


def test_the_reporter_asks_at_rungs_with_samples_counted_over_a_resume(tmp_path):
    run = Run.create(tmp_path / "run", paper_recipe("digits", epochs=4))
    run.log_epoch(line(1))
    asked = []

    def judge(epoch, found):
        asked.append((epoch, found))
        return epoch == 3

    reporter = RungReporter(judge, Reporter())
    reporter.start(run, 1)
    reporter.end_epoch(line(2))
    with pytest.raises(TrialStopped, match="stopped after epoch 3") as stopped:
        reporter.end_epoch(line(3))
    assert stopped.value.epoch == 3
    assert [(epoch, found[2]) for epoch, found in asked] == [(2, 200.0), (3, 300.0)]
    assert asked[0][1][:2] == (pytest.approx(0.1), 0.02)


def test_the_reporter_asks_nowhere_else_and_tells_the_one_inside_everything(tmp_path):
    told, asked = [], []

    class Inner(Reporter):
        def start(self, run, done):
            told.append(("start", done))

        def end_epoch(self, line):
            told.append(("end", line["epoch"]))

    run = Run.create(tmp_path / "run", paper_recipe("digits", epochs=8))
    reporter = RungReporter(lambda epoch, _: asked.append(epoch), Inner())
    reporter.start(run, 0)
    for epoch in range(1, 9):
        reporter.end_epoch(line(epoch) if epoch != 4 else {"epoch": 4, "samples": 100})
    assert asked == [2, 6]  # of the rungs 2, 4 and 6 the second was not validated
    assert told == [("start", 0), *(("end", epoch) for epoch in range(1, 9))]


def test_figures_from_a_log_are_those_that_the_reporter_showed():
    log = [line(epoch, samples=10 * epoch) for epoch in range(1, 5)]
    found = figures_at_rungs(log, epochs=4)
    assert {epoch: values[2] for epoch, values in found.items()} == {1: 10.0, 2: 30.0, 3: 60.0}
    del log[1]["validation"]
    assert set(figures_at_rungs(log, epochs=4)) == {1, 3}
