"""What a hostile campaign broke in version 0.1.0: for each failure its number in the list, its command and input."""

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrant.cli import run
from tests.fuzz import old_inputs as made
from tests.fuzz import targets
from tests.fuzz.old_inputs import archive, array_of, edit, flipped, npy, swap, text


@dataclass(frozen=True)
class Case:
    """One old failure.

    Attributes:
        point: Number in the list of the campaign.
        before: What happened then.
        command: Arguments of `calibrant`, or a name of what `call` does.
        make: Makes the input in the working directory.
        call: A Python call instead of a command.
        after: What to add to the line, from standard output.
    """

    point: int
    before: str
    command: str
    make: Callable[[], object] = lambda: None
    call: Callable[[], object] | None = None
    after: Callable[[str], str] | None = None


def _ran(_: str) -> str:
    return f"The code ran: {'YES' if Path('it_ran').exists() else 'no'}."


def _read_records() -> object:
    from calibrant.studies import read_records

    return read_records(Path("records"))


def _outside(out: str) -> str:
    said = json.loads(out)
    flat = {name: value for name, value in said.items() if isinstance(value, float)}
    flat |= {f"{key}@{row['delta']}": row[key] for row in said["thresholds"] for key in row if key != "delta"}
    ends = said["intervals"]
    outside = [name for name, (low, high) in ends.items() if not low <= flat[name] <= high]
    return f"{len(ends)} intervals, of which {len(outside)} miss the value beside them."


def _epochs(_: str) -> str:
    lines = Path("paused/metrics.jsonl").read_text().splitlines()
    return f"Epochs in the log: {[json.loads(line)['epoch'] for line in lines]}."


def _promise(out: str) -> str:
    return " ".join(line.strip() for line in out.splitlines() if "threshold" in line or "more than" in line)[:300]


def _ulps() -> object:
    """Rules of 400 sets of logits: how many automate another number than their evidence states?"""
    from calibrant import Predictions
    from calibrant.decisions import choose_threshold

    wrong = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=(60, 3)).astype(np.float32) * 3
        cases = Predictions.from_logits(scores, scores.argmax(axis=1) * (rng.random(60) < 0.8))
        rule = choose_threshold(cases, 0.5, thresholds=np.unique(cases.confidence))
        automated = round(rule.automation_rate * 60)
        wrong += int(rule.route(cases).automate.sum()) != automated
    return sys.stdout.write(f"{wrong} of 400 rules automate another number than they state\n")


def _null_ids() -> object:
    """Parquet with an id that is null alone in its block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table("test.parquet")
    ids = [None, *[f"id {n}" for n in range(table.num_rows - 1)]]
    table = table.set_column(table.column_names.index("id"), "id", pa.array(ids))
    return pq.write_table(table, "nulls.parquet", row_group_size=1)


def _bus_error() -> object:
    """A file that is cut off while it is mapped."""
    from calibrant import Predictions, evaluate

    mapped = Predictions.load("large.npz", mmap=True)
    os.truncate("large.npz", 5000)
    return evaluate(mapped)


def _flip_parquet() -> None:
    """One bit inside the pages of a file that has checksums."""
    data = bytearray(Path("test.parquet").read_bytes())
    data[len(data) // 4] ^= 16
    Path("test.parquet").write_bytes(bytes(data))


def _many_rows(path: str, rows: int) -> Callable[[], object]:
    def make() -> None:
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet as pq

        rng = np.random.default_rng(0)
        top = rng.uniform(0.5, 1.0, rows)
        right = rng.random(rows) < top
        columns = {"target": np.where(right, 0, 1), "probability_0": top, "probability_1": 1 - top}
        table = pa.table(columns)
        (pq.write_table if path.endswith("parquet") else pyarrow.csv.write_csv)(table, path)

    return make


def _two_classes() -> None:
    made.logits("two.npz", 2000, 2)()
    assert run(["route", "fit", "two.npz", "--target-accuracy", "0.9", "--out", "policy2.json"]) == 0


def _interrupt_two() -> object:
    """Ctrl-C where two processes train one run, and the same where the second is killed."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    from chaos_processes import Ranks

    signal.signal(signal.SIGINT, signal.default_int_handler)
    begin = "train --data digits --model tiny --epochs 200 --devices 2 --out two"
    begin += " --set optimiser.batch_size=256 --set engine.accelerator=cpu"
    for what in ("Ctrl-C", "second process killed"):
        ranks = Ranks(shlex.split("train --resume two" if Path("two").exists() else begin), Path("said.txt"))
        log = Path("two/metrics.jsonl")
        before = len(log.read_bytes()) if log.exists() else 0
        while ranks.first.poll() is None and (not log.exists() or len(log.read_bytes()) == before):
            time.sleep(0.1)
        begun = time.monotonic()
        if what == "Ctrl-C":
            os.killpg(ranks.first.pid, signal.SIGINT)
        else:
            os.kill(max(set(ranks.alive()) - {ranks.first.pid}), signal.SIGKILL)
        ended = ranks.end(60.0)
        said = [line for line in ranks.said()[0].splitlines() if line.startswith("calibrant: ") or "Traceback" in line]
        told = f"{'both ended' if ended else 'NOT BOTH ENDED'} after {time.monotonic() - begun:.0f} s: {said}"
        sys.stderr.write(f"{what}: exit {ranks.first.returncode}, {told} ")
    return None


def _killed_apply() -> object:
    """Kill a `route apply` while it writes."""
    before = set(Path().iterdir())
    child = os.fork()
    if not child:
        os._exit(run(shlex.split("route apply policy2.json rows.csv --out killed.csv")))
    time.sleep(2.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left = sorted(path.name for path in set(Path().iterdir()) - before)
    return sys.stdout.write(f"left behind: {left}\n")


_SHORT = npy("(200000, 3)", body=bytes(960))
_ROUTE = "route apply policy.json test.npz --out decisions.csv"
_TRAIN = (
    "train --data folder:pictures --model tiny --epochs 1 --method nll --out trained "
    "--set optimiser.batch_size=8 --set engine.accelerator=cpu"
)
_DEEP = "[" * 100_000 + "]" * 100_000
_DIGITS = "9" * 5_000

CASES = (
    Case(
        1, "imported and called what a record names", "read_records('records')", made.evil_record, _read_records, _ran
    ),
    Case(1, "ran the module, then refused", "train --resume paused", made.evil_run("model", "paused"), after=_ran),
    Case(1, "imported it", "record run --out recorded", made.evil_run("model"), after=_ran),
    Case(1, "imported and called it", "export run --out x.onnx", made.evil_run("model"), after=_ran),
    Case(
        1,
        "ran what an old study names",
        "compare --out old",
        made.both(
            lambda: Path("evil_net.py").write_text(made.EVIL),
            lambda: Path("old").mkdir(),
            text("old/study.toml", "methods = ['evil_net:f']\nseeds = [0]\ndata = ['digits']\n[recipe]\nepochs = 1\n"),
        ),
        after=_ran,
    ),
    Case(
        2,
        "n = 200,000 and an ECE from uninitialised memory",
        "evaluate short.npz",
        archive("short.npz", {"logits": _SHORT, "targets": npy("(200000,)", "<i8", bytes(320))}),
    ),
    Case(
        3,
        "values outside their own interval in up to 100 % of draws",
        "evaluate calibrated.npz --n-resamples 200 --json",
        made.logits("calibrated.npz", 10_000, 10),
        after=_outside,
    ),
    Case(
        4,
        "an epoch vanished",
        "train --resume paused",
        swap("paused/metrics.jsonl", '{"epoch": 1', '{"eqoch": 1'),
        after=_epochs,
    ),
    Case(5, "30 of 400 rules automated another number", "choose_threshold(logits), 400 times", call=_ulps),
    Case(5, "another decision without a word", _ROUTE, flipped("policy.json", r'"threshold": 0\.\d')),
    Case(5, "another decision without a word", _ROUTE, flipped("policy.json", r'"temperature": \d\.\d')),
    Case(5, "849 of 1,000 unseen", "evaluate test.parquet", _flip_parquet),
    Case(5, "took the last one", _ROUTE, swap("policy.json", "{", '{"n_classes": 3, ')),
    Case(
        6,
        "OverflowError",
        "route fit near.npz --target-accuracy 0.999",
        made.near_the_target("near.npz", 1001, 1),
        after=_promise,
    ),
    Case(
        6,
        "OverflowError",
        "route fit near.npz --target-accuracy 0.99",
        made.near_the_target("near.npz", 2001, 20),
        after=_promise,
    ),
    Case(7, "StopIteration", "evaluate test.csv", made.rewrite_csv("test.csv", made.mixed_targets)),
    Case(7, "trained, then could not be reported", _TRAIN, lambda: made.class_folder(b"caf\xe9")),
    Case(7, "MarkupError after the training", _TRAIN, lambda: made.class_folder(b"[bold]x")),
    Case(
        7,
        "broke the output",
        "route apply policy.json nulls.parquet --out d.parquet",
        _null_ids,
    ),
    Case(
        7,
        "SIGBUS",
        "evaluate(Predictions.load(mmap=True)), cut off meanwhile",
        made.logits("large.npz", 40_000, 3),
        _bus_error,
    ),
    Case(8, "hung in 3 of 32 tries, orphans in 7 of 20", "train --devices 2, interrupted", call=_interrupt_two),
    Case(
        9,
        "hung",
        "evaluate x.npz",
        archive(
            "x.npz",
            {
                "logits": array_of(np.zeros((3, 2))),
                "targets": array_of(np.zeros(3, int)),
                "ids": npy(f"({10**18}, 0)", "<U1"),
            },
        ),
    ),
    Case(9, "8 to 11 GB", _ROUTE, edit("policy.json", part="rule", n_classes=10**9)),
    Case(9, "4 GB from 17 MB", "evaluate zeros.npz", made.zeros("zeros.npz", 4000)),
    Case(9, "4 GB from four pictures", "data check folder:pictures", lambda: made.pictures(13_000)),
    Case(9, "hang, MemoryError or OverflowError", "data check folder:pictures?size=30000"),
    Case(9, "tried to allocate it", "evaluate x.npz", archive("x.npz", {"logits": npy(f"({10**12}, 2)")})),
    Case(9, "minutes in the parser", "evaluate x.npz", archive("x.npz", {"logits": npy(f"({'-' * 9000}1,)")})),
    Case(9, "quadratic", "route apply many.json many.npz --out d.csv", lambda: made.many_names("many.npz")),
    Case(10, "RecursionError", _ROUTE, text("policy.json", _DEEP)),
    Case(10, "ValueError", _ROUTE, text("policy.json", f'{{"n_classes": {_DIGITS}}}')),
    Case(10, "RecursionError", "train --recipe x.toml --out new", text("x.toml", f"a = {_DEEP}")),
    Case(10, "TypeError", _ROUTE, edit("policy.json", part="calibrator", method=["temperature"])),
    Case(10, "UnicodeEncodeError", _ROUTE, edit("policy.json", class_names=["\ud800", "b", "c"])),
    Case(10, "a traceback", "report run", edit("run/summary.json", samples_seen="many")),
    Case(10, "a traceback", "record run --out recorded", edit("run/summary.json", test={"ece": "small"})),
    Case(
        10,
        "a traceback",
        "report run",
        lambda: np.savez("run/pruning.npz", index=np.zeros((2, 2)), label=np.array("x")),
    ),
    Case(
        10,
        "UnicodeDecodeError",
        "Tiny-ImageNet's lists",
        text("sets/tiny-imagenet-200/words.txt", b"n01\tgoldfish\xff\n"),
        lambda: targets._read_tiny(Path()),
    ),
    Case(
        10,
        "signal 11 inside SciPy",
        "SVHN's .mat",
        flipped("sets/train_32x32.mat", "MATLAB"),
        lambda: targets._read_svhn(Path()),
    ),
    Case(
        11,
        "ran in a spreadsheet",
        _ROUTE.replace(".npz", ".csv"),
        made.rewrite_csv("test.csv", made.formulas),
        after=lambda _: " ".join(Path("decisions.csv").read_text().splitlines()[1].split(",")[:1]),
    ),
    Case(
        11,
        "left a draft for ever",
        "route apply, killed",
        made.both(_many_rows("rows.csv", 1_000_000), _two_classes),
        _killed_apply,
    ),
    Case(11, "reached the terminal", "evaluate 'a\x1b[31m.npz'", lambda: shutil.copy("val.csv", "a\x1b[31m.npz")),
    Case(11, "thousands of characters", f"evaluate {'x' * 3000}.npz"),
    Case(11, "a crash and a failed check were both 1", "evaluate test.npz --max-ece 0.000001"),
    Case(12, "3.8 GB for 20 million rows", "evaluate rows.parquet", _many_rows("rows.parquet", 2_000_000)),
    Case(
        12,
        "363 s for 20 million rows",
        "route apply policy2.json rows.csv --out decisions.csv",
        made.both(_many_rows("rows.csv", 1_000_000), _two_classes),
    ),
)
