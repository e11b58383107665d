"""Trackers get what the run's own log says; the real packages, offline."""

import sys

import pytest

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.metrics import evaluate
from calibrant.training import Recipe, Reporter, Run, TrackedReporter, make_reporter, resume, train


def test_tensorboard_gets_every_figure_of_every_epoch(toy, toy_recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(toy_recipe(), folder, data=toy, reporter=stop_after(2, make_reporter(["tensorboard"])))
    run = resume(folder, data=toy, reporter=make_reporter(["tensorboard"]))
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= {
        *("loss", "accuracy", "ece", "kept_share", "lr", "samples_per_second", "test/ece"),
        *("terms/sample_dependent_focal", "terms/huber_calibration", "validation/accuracy", "validation/ece"),
    }
    for tag in ("loss", "accuracy", "lr"):
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == [(line["epoch"], pytest.approx(line[tag], rel=1e-6)) for line in run.epochs()]


@pytest.fixture
def mlflow_client(tmp_path, monkeypatch):
    """MLflow with a store of files, which is ready in no time; its database takes seconds to set up."""
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "tracked").as_uri())
    return MlflowClient((tmp_path / "tracked").as_uri())


def stop_after(epochs, reporter):
    """Interrupt the training as a person would."""

    def end_epoch(line):
        type(reporter).end_epoch(reporter, line)
        if line["epoch"] == epochs:
            raise KeyboardInterrupt

    reporter.end_epoch = end_epoch
    return reporter


def test_mlflow_gets_settings_figures_and_results(make_toy, toy_recipe, tmp_path, monkeypatch, mlflow_client):
    toy = make_toy(samples=1100)  # enough validation cases for a temperature
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "toys")
    run = train(toy_recipe(), tmp_path / "run", data=toy, reporter=make_reporter(["mlflow"]))
    experiment = mlflow_client.get_experiment_by_name("toys").experiment_id
    (tracked,) = mlflow_client.search_runs([experiment])
    assert (tracked.info.status, tracked.info.run_name) == ("FINISHED", "run")
    assert tracked.data.params["optimiser.lr"] == str(run.recipe.optimiser.lr)
    history = mlflow_client.get_metric_history(tracked.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(line["epoch"], line["loss"]) for line in run.epochs()]
    expected = evaluate(run.predictions("test"))
    assert tracked.data.metrics["test/ece"] == expected.ece
    assert tracked.data.metrics["test/share at 0.95"] == expected.values()["share@0.95"]
    calibrator = run.policy().calibrator
    assert tracked.data.metrics["temperature"] == calibrator.temperature_
    assert tracked.data.metrics["test_calibrated/nll"] == evaluate(calibrator(run.predictions("test"))).nll


def test_wandb_offline_keeps_settings_figures_and_results(make_toy, toy_recipe, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    try:
        train(toy_recipe(), tmp_path / "run", data=make_toy(), reporter=make_reporter(["wandb"]))
    finally:
        wandb.teardown()
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()  # the tool's own log, which `wandb sync` sends
    for name in (b"validation/ece", b"optimiser.lr", b"test/ece"):
        assert name in content


class FailingLogger:
    """A logger that fails from the first epoch on."""

    version = "1"

    def log_hyperparams(self, settings):
        pass

    def log_metrics(self, figures, step):
        raise RuntimeError("the server is gone")


def test_a_tracker_that_fails_later_costs_one_warning(toy, toy_recipe, tmp_path, monkeypatch):
    reporter = TrackedReporter(Reporter(), lambda *_: FailingLogger())
    with pytest.warns(CalibrantWarning, match=r"tracker failed and gets no more .*: the server is gone") as heard:
        run = train(toy_recipe(), tmp_path / "run", data=toy, reporter=reporter)
    assert run.finished
    assert len([each for each in heard if issubclass(each.category, CalibrantWarning)]) == 1


def test_a_tracker_that_cannot_begin_ends_the_run_before_it_has_begun(toy, toy_recipe, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no answer\nfrom the server.")

    with pytest.raises(InvalidInput, match=r"tracker cannot begin a run: no answer from the server\.$"):
        train(toy_recipe(), tmp_path / "run", data=toy, reporter=TrackedReporter(Reporter(), refuse))
    Run.create(tmp_path / "run", Recipe())  # the folder can be trained into again


@pytest.mark.parametrize(
    ("name", "missing"), [("mlflow", "mlflow"), ("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_missing_package_names_its_extra(name, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidInput, match=rf"^--track {name} needs .*pip install 'calibrant\[{name}\]'$"):
        make_reporter([name])
