import contextlib
import json
import sqlite3
import sys

import numpy as np
import pytest
import torch
from optuna.trial import TrialState

from calibrant.errors import InvalidInput
from calibrant.studies.sweeps import Sweep, SweepSpec, failures, front_table, sweep_json
from calibrant.training import Reporter

SPEC = SweepSpec(recipe={"epochs": 3}, search=("drop=0.3:0.8", "optimiser.lr=0.01:0.2:log"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    made = Sweep(tmp_path_factory.mktemp("sweep") / "s", SPEC)
    made.run(trials=3)
    return made


def dominates(a, b):
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def test_objectives_are_the_runs_validation_figures_and_samples(sweep):
    assert len(sweep.finished()) == 3
    for trial in sweep.finished():
        summary = json.loads((sweep.path / "runs" / trial.user_attrs["run"] / "summary.json").read_text())
        validation = summary["validation"]
        assert trial.values == [validation["test_error"], validation["ece"], summary["seen_share"]]
        assert summary["recipe"]["method"]["options"]["drop"] == trial.params["drop"]
        assert summary["recipe"]["optimiser"]["lr"] == trial.params["optimiser.lr"]


def test_nll_after_scaling_may_stand_in_the_place_of_ece(tmp_path):
    spec = SPEC.model_copy(update={"objective": "scaled-nll", "method": "nll+infobatch", "search": ("ratio",)})
    made = Sweep(tmp_path / "s", spec)
    made.run(trials=1)
    [trial] = made.finished()
    validation = made.path / "runs" / trial.user_attrs["run"] / "predictions" / "val.npz"
    logits, targets = np.load(validation)["logits"].astype(np.float64), np.load(validation)["targets"]

    def nll(temperature):
        scaled = logits / temperature
        log = scaled - scaled.max(axis=1, keepdims=True)
        log -= np.log(np.exp(log).sum(axis=1, keepdims=True))
        return -log[np.arange(len(log)), targets].mean()

    grid = min(nll(temperature) for temperature in np.geomspace(0.05, 20, 4000))
    assert trial.values[1] == pytest.approx(grid, rel=1e-5)
    assert sweep_json(made)["objectives"][1] == "validation NLL +TS"
    assert front_table(made).rows[0][2] == f"{trial.values[1]:.4f}"
    with pytest.raises(InvalidInput, match="searches something else"):
        Sweep(made.path, spec.model_copy(update={"objective": "ece"}))


def test_the_front_is_what_nobody_dominates(sweep):
    values = {trial.number: trial.values for trial in sweep.finished()}
    expected = {n for n, mine in values.items() if not any(dominates(other, mine) for other in values.values())}
    assert {trial.number for trial in sweep.front()} == expected
    assert [int(row[0]) for row in front_table(sweep).rows] == [trial.number for trial in sweep.front()]


def test_the_json_has_every_trial_and_no_path(sweep):
    content = sweep_json(sweep)
    assert {trial["number"] for trial in content["finished"]} == {0, 1, 2}
    assert str(sweep.path) not in json.dumps(content)


def test_running_again_adds_nothing_and_more_trials_go_on(sweep):
    sweep.run(trials=3)
    again = Sweep(sweep.path)
    assert len(again.study.trials) == 3
    assert again.spec == sweep.spec


def test_trials_of_an_edited_method_are_not_mixed(tmp_path, monkeypatch):
    code = "from calibrant.losses import CrossEntropy\ndef f(*, a: float = 0.0):\n    return CrossEntropy(a)\n"
    monkeypatch.chdir(tmp_path)
    spec = SweepSpec(method="my_swept:f", recipe={"epochs": 1}, search=("a=0.0:0.2",))
    (tmp_path / "my_swept.py").write_text(code)
    Sweep(tmp_path / "s", spec, trust_code=True)
    Sweep(tmp_path / "s")
    (tmp_path / "my_swept.py").write_text(code + "# edited\n")
    monkeypatch.delitem(sys.modules, "my_swept")
    with pytest.raises(InvalidInput, match="searches something else"):
        Sweep(tmp_path / "s", trust_code=True)
    monkeypatch.delitem(sys.modules, "my_swept")


def test_a_study_is_not_mixed_with_another_search(sweep):
    other = SPEC.model_copy(update={"recipe": {"epochs": 4}})
    with pytest.raises(InvalidInput, match="searches something else"):
        Sweep(sweep.path, other)
    assert Sweep(sweep.path).spec == SPEC


class Interrupt(Reporter):
    def end_epoch(self, line):
        raise KeyboardInterrupt


def test_an_interrupted_trial_is_continued_by_the_next_call(tmp_path):
    sweep = Sweep(tmp_path, SPEC)
    with pytest.raises(KeyboardInterrupt, match="run the same command again to continue"):
        sweep.run(trials=1, reporter=Interrupt())
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "summary.json").exists()
    Sweep(tmp_path).run(trials=1)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    assert (folder / "summary.json").exists()
    assert [trial.state for trial in sweep.study.trials] == [TrialState.FAIL, TrialState.COMPLETE]


# A batch larger than the set is found out only when the data are read.
@pytest.mark.parametrize(
    ("setting", "possible", "impossible"), [("drop", 0.5, 1.5), ("optimiser.batch_size", 128, 4000)]
)
def test_what_is_not_possible_counts_as_stopped_and_the_sweep_goes_on(tmp_path, setting, possible, impossible):
    sweep = Sweep(tmp_path, SPEC.model_copy(update={"search": (f"{setting}={possible},{impossible}",)}))
    sweep.study.enqueue_trial({setting: impossible})
    sweep.run(trials=1)
    (trial,) = sweep.stopped()
    assert trial.user_attrs["stopped"].startswith(f"not possible: {setting}")
    (reason,) = failures(sweep)
    assert f"0 trials finished, 1 failed (the first: {reason.rstrip('.')}). " in front_table(sweep).caption


def test_a_trial_that_needs_too_much_memory_does_not_end_the_sweep(tmp_path, monkeypatch):
    def too_large(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    sweep = Sweep(tmp_path, SPEC)
    monkeypatch.setattr("calibrant.studies.sweeps.train_or_resume", too_large)
    sweep.run(trials=2)
    assert failures(sweep) == ["not possible: CUDA out of memory."] * 2


def test_fewer_epochs_are_cheaper_where_epochs_are_searched(tmp_path):
    sweep = Sweep(
        tmp_path, SPEC.model_copy(update={"method": "nll", "recipe": {"epochs": 4}, "search": ("epochs=1,2",)})
    )
    for epochs in (1, 2):
        sweep.study.enqueue_trial({"epochs": epochs})
    sweep.run(trials=2)
    assert [trial.values[2] for trial in sweep.finished()] == [0.25, 0.5]


def test_a_sweep_whose_trials_are_in_another_storage_is_not_begun_anew_without_it(tmp_path):
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    Sweep(tmp_path / "s", SPEC, storage=url)
    for spec in (None, SPEC):
        with pytest.raises(InvalidInput, match="are in another storage"):
            Sweep(tmp_path / "s", spec)
    assert not (tmp_path / "s" / "sweep.db").exists()
    assert Sweep(tmp_path / "s", storage=url).spec == SPEC


def test_data_that_are_missing_stop_the_sweep_at_once(tmp_path):
    sweep = Sweep(tmp_path / "s", SPEC.model_copy(update={"data": "cifar10"}))
    with pytest.raises(InvalidInput, match="cifar10"):
        sweep.run(trials=1, data_dir=tmp_path)
    assert not sweep.study.trials


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fsld"}, "Did you mean 'flsd'"),
        ({"search": ("nonsense=1:2",)}, "name a setting"),
        ({"recipe": {"engine.devices": 2}}, "be 1 in a sweep"),
        ({"recipe": {"epoch": 2}}, "'epoch' is unknown"),
    ],
)
def test_bad_input_leaves_nothing_behind(changes, message, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        Sweep(tmp_path / "s", SPEC.model_copy(update=changes))
    assert message in str(caught.value)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "mystery://u:hunter2@host/db",
        "postgresql+psycopg://u:hunter2@127.0.0.1:9/db",
        "postgresql+psycopg://u:with@hunter2@host.invalid/db",
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line_without_its_password(url, tmp_path):
    with pytest.raises(InvalidInput, match="cannot be used") as caught:
        Sweep(tmp_path / "new", SPEC, storage=url)
    assert not (tmp_path / "new").exists()
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_trials_must_be_positive(sweep):
    with pytest.raises(InvalidInput, match="trials must be a whole number of at least 1"):
        sweep.run(trials=0)


def test_a_spec_made_in_python_is_checked_in_one_line():
    with pytest.raises(InvalidInput, match=r"^sweep key 'methods' is unknown\. Did you mean 'method'\?$"):
        SweepSpec(methods="nll")


def test_a_damaged_database_is_one_line(tmp_path):
    Sweep(tmp_path, SPEC)
    (tmp_path / "sweep.db").write_bytes(b"no database" * 1000)
    with pytest.raises(InvalidInput, match=r"storage sqlite:\.\.\. cannot be used: DatabaseError"):
        Sweep(tmp_path)


def test_a_folder_must_be_a_path():
    with pytest.raises(InvalidInput, match="path must"):
        Sweep(None, SPEC)


def ask_as_another_worker(sweep, *, silent_seconds):
    """A trial that another worker began, and whose last heartbeat is so many seconds old."""
    sweep.study.enqueue_trial({"drop": 0.5, "optimiser.lr": 0.05})
    trial = sweep.study.ask()
    for name, where in sweep.space.items():
        trial.suggest_float(name, where.low, where.high, log=where.log)
    with contextlib.closing(sqlite3.connect(sweep.path / "sweep.db")) as database, database:
        database.execute(
            "INSERT INTO trial_heartbeats (trial_id, heartbeat) VALUES (?, datetime('now', ?))",
            (trial._trial_id, f"-{silent_seconds} seconds"),
        )
    return trial


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_the_trial_of_a_worker_that_was_silent_for_long_is_begun_again(tmp_path):
    sweep = Sweep(tmp_path, SPEC)
    lost = ask_as_another_worker(sweep, silent_seconds=3600)
    sweep.run(trials=1)
    states = {trial.number: trial.state for trial in sweep.study.trials}
    assert states == {lost.number: TrialState.FAIL, 1: TrialState.COMPLETE}
    assert sweep.finished()[0].params == {"drop": 0.5, "optimiser.lr": 0.05}
