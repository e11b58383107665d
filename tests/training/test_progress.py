import io
import re
from types import SimpleNamespace

from rich.console import Console

from calibrant.training import LiveBar, PlainLines, train
from calibrant.training.progress import describe

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
    assert lines[0] == "flsd+h+p-ema on digits with tiny, 4 epochs, seed 3"
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


def test_the_bar_moves_within_an_epoch():
    bar = LiveBar(Console(file=io.StringIO(), force_terminal=True))
    recipe = SimpleNamespace(method=SimpleNamespace(name="nll"), epochs=4)
    bar.start(SimpleNamespace(recipe=recipe), 1)
    shown = []
    for epoch, steps in ((2, 0), (3, 4)):
        bar.begin_epoch(epoch, steps)
        for _ in range(steps):
            bar.step()
            shown.append(bar._progress.tasks[0].completed)
    bar.stop()
    assert shown == [2.25, 2.5, 2.75, 3.0]
