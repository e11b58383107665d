import io
import re

import pytest
from rich.console import Console

from calibrant.errors import OutputError
from calibrant.training import train
from calibrant.training.progress import LiveBar, PlainLines, Quiet, TensorBoard, describe

_LINE = {
    "epoch": 2,
    "loss": 0.5,
    "terms": {"focal": 0.4, "huber": 0.1},
    "accuracy": 0.9,
    "ece": 0.0123,
    "kept_share": 0.81,
    "lr": 0.1,
    "samples_per_second": 12345.6,
    "validation": {"accuracy": 0.875, "ece": 0.05},
}


def test_an_epoch_in_one_line():
    assert describe(_LINE) == (
        "loss 0.500 (focal 0.4000, huber 0.1000), accuracy 90.0%, ECE 1.23%, validation 87.5%, ECE 5.00%, "
        "kept 81%, 12,346 samples/s"
    )
    single = {key: value for key, value in _LINE.items() if key != "validation"} | {"terms": {"focal": 0.5}}
    assert describe(single) == "loss 0.500, accuracy 90.0%, ECE 1.23%, kept 81%, 12,346 samples/s"


def test_plain_lines_say_what_begins_and_how_each_epoch_went(toy, toy_recipe, tmp_path):
    lines = []
    train(toy_recipe(), tmp_path / "run", data=toy, reporter=PlainLines(lines.append))
    assert lines[0] == "flsd+h+p-ema on digits with tiny, seed 3"
    assert [line.split(":")[0] for line in lines[1:]] == [f"epoch {number}/4" for number in (1, 2, 3, 4)]


def test_the_live_bar_shows_the_figures_and_the_time_left(toy, toy_recipe, tmp_path):
    screen = io.StringIO()
    # A terminal of the usual width: nothing may be cut off.
    console = Console(file=screen, force_terminal=True, width=80)
    run = train(toy_recipe(), tmp_path / "run", data=toy, reporter=LiveBar(console))
    shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", screen.getvalue()).split())
    for line in run.epochs():
        assert f"{line['epoch']}/4 epochs, " in shown
        assert describe(line) in shown
    assert re.search(r"epochs, [0-9]+:[0-9]{2}:[0-9]{2} left", shown)
    assert "…" not in shown


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
