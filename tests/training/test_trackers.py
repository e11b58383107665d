"""Tracking tools are told what the run's own log says; the real packages, offline."""

from types import SimpleNamespace

import pytest

from calibrant.calibration import TemperatureScaling
from calibrant.errors import CalibrantWarning, InvalidInput, OutputError
from calibrant.metrics import evaluate
from calibrant.training import Recipe, Run, resume, train
from calibrant.training.progress import Quiet
from calibrant.training.trackers import MLflow, TensorBoard, WeightsAndBiases, make_reporter


def test_tensorboard_gets_every_scalar_of_every_epoch(toy, toy_recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(toy_recipe(), tmp_path / "run", data=toy, reporter=TensorBoard(Quiet()))
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        *("loss", "accuracy", "ece", "kept_share", "lr", "samples_per_second"),
        *("terms/sample_dependent_focal", "terms/huber_calibration", "validation/accuracy", "validation/ece"),
    }
    for tag in ("loss", "accuracy", "lr"):
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == [(line["epoch"], pytest.approx(line[tag], rel=1e-6)) for line in run.epochs()]


def test_tensorboard_shows_an_epoch_while_the_next_one_runs(tmp_path, epoch_line):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporter = TensorBoard(Quiet())
    reporter.stop()  # a run that was refused before it began
    reporter.start(SimpleNamespace(path=tmp_path), 1)
    reporter.end_epoch(epoch_line(2))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(2, 0.5)]
    reporter.stop()


def test_epochs_that_are_run_again_replace_those_in_tensorboard(tmp_path):
    opened = []
    reporter = TensorBoard(Quiet())
    reporter._open = lambda folder, purge_step: opened.append((folder, purge_step))
    reporter.start(SimpleNamespace(path=tmp_path), 3)
    assert opened == [(str(tmp_path / "tensorboard"), 4)]


def test_a_full_disk_under_tensorboard_is_one_line(toy, toy_recipe, tmp_path):
    class Full:
        def __init__(self, *arguments, **more):
            pass

        def add_scalar(self, *arguments):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    reporter = TensorBoard(Quiet())
    reporter._open = Full
    with pytest.raises(OutputError, match="The disk is full"):
        train(toy_recipe(), tmp_path / "run", data=toy, reporter=reporter)


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


def test_mlflow_gets_settings_scalars_results_and_goes_on_under_the_same_id(
    make_toy, toy_recipe, tmp_path, monkeypatch, mlflow_client
):
    toy = make_toy(samples=1100)  # enough validation cases for a temperature
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "toys")
    with pytest.raises(KeyboardInterrupt):
        train(toy_recipe(), tmp_path / "run", data=toy, reporter=stop_after(2, MLflow(Quiet())))
    experiment = mlflow_client.get_experiment_by_name("toys").experiment_id
    (stopped,) = mlflow_client.search_runs([experiment])
    assert stopped.info.status == "KILLED"
    run = resume(tmp_path / "run", data=toy, reporter=MLflow(Quiet()))
    (tracked,) = mlflow_client.search_runs([experiment])
    assert (tracked.info.status, tracked.info.run_name) == ("FINISHED", "run")
    assert tracked.data.params["optimiser.lr"] == str(run.recipe.optimiser.lr)
    assert tracked.data.params["method.name"] == "flsd+h+p-ema"
    history = mlflow_client.get_metric_history(tracked.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(line["epoch"], line["loss"]) for line in run.epochs()]
    expected = evaluate(run.predictions("test"))
    assert tracked.data.metrics["test/ece"] == expected.ece
    assert tracked.data.metrics["test/share at 0.95"] == expected.values()["share@0.95"]
    calibrator = TemperatureScaling.load(run.calibrator_path)
    assert tracked.data.metrics["temperature"] == calibrator.temperature_
    assert tracked.data.metrics["test_calibrated/nll"] == evaluate(calibrator(run.predictions("test"))).nll
    files = {each.path for each in mlflow_client.list_artifacts(tracked.info.run_id)}
    assert files == {"recipe.toml", "summary.json", "calibrator.json"}


def test_wandb_offline_keeps_what_the_run_says(make_toy, toy_recipe, tmp_path, monkeypatch):
    toy = make_toy(samples=1100)
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    sent, results = [], {}

    class Spied(WeightsAndBiases):
        def _begin(self, run, known):
            found = super()._begin(run, known)
            log, end = self._tracked.log, self._tracked.finish
            self._tracked.log = lambda scalars, step: (sent.append((step, scalars)), log(scalars, step=step))
            self._tracked.finish = lambda **more: (results.update(self._tracked.summary), end(**more))
            return found

    try:
        run = train(toy_recipe(), tmp_path / "run", data=toy, reporter=Spied(Quiet()))
    finally:
        wandb.teardown()
    assert [(step, scalars["loss"]) for step, scalars in sent] == [(x["epoch"], x["loss"]) for x in run.epochs()]
    assert results["test/ece"] == pytest.approx(evaluate(run.predictions("test")).ece)
    assert results["temperature"] == pytest.approx(TemperatureScaling.load(run.calibrator_path).temperature_)
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()  # the tool's own log, which `wandb sync` sends
    assert b"validation/ece" in content
    assert b"optimiser.lr" in content


class Failing(MLflow):
    """Cannot be reached at the start, or from the first epoch on."""

    def __init__(self, *, at_start):
        super().__init__(Quiet())
        self.at_start, self.ended = at_start, False

    def _begin(self, run, known):
        if self.at_start:
            raise ConnectionError("no answer\nfrom the server.")
        return "1"

    def _send(self, scalars, epoch):
        raise RuntimeError("the server is gone")

    def _end(self):
        self.ended = True


def test_a_tool_that_fails_later_does_not_end_the_training(toy, toy_recipe, tmp_path):
    pytest.importorskip("mlflow")
    reporter = Failing(at_start=False)
    with pytest.warns(CalibrantWarning, match=r"^MLflow failed and is told nothing more: the server is gone") as heard:
        run = train(toy_recipe(), tmp_path / "run", data=toy, reporter=reporter)
    assert run.finished
    assert len([each for each in heard if issubclass(each.category, CalibrantWarning)]) == 1
    assert not reporter.ended


def test_a_tool_that_cannot_be_reached_is_refused_before_the_training(toy, toy_recipe, tmp_path):
    pytest.importorskip("mlflow")
    with pytest.raises(InvalidInput, match=r"^MLflow did not begin a run: no answer from the server\. Set MLFLOW"):
        train(toy_recipe(), tmp_path / "run", data=toy, reporter=Failing(at_start=True))
    Run.create(tmp_path / "run", Recipe())  # the folder can be trained into again


@pytest.mark.parametrize("missing", ["mlflow.tracking", "wandb", "torch.utils.tensorboard"])
def test_a_missing_package_names_its_extra(missing, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, missing, None)
    name = missing.split(".")[-1] if missing != "mlflow.tracking" else "mlflow"
    with pytest.raises(InvalidInput, match=rf"^--{name} needs .*pip install 'calibrant\[{name}\]'$"):
        make_reporter(**{name: True})
