"""The command line: a module per command; this one joins them and turns errors into exit codes.

Exit codes: 0 done, 1 a check that the user asked for failed, 2 bad input or output that cannot be written, 70 a fault
of this package, 130 interrupted. With the environment variable CALIBRANT_DEBUG, a fault shows its traceback.
"""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cyclopts import App, CycloptsError, MissingArgumentError

from calibrant import __version__
from calibrant.cli._shared import complain, plain_warnings
from calibrant.errors import CalibrantError, CheckFailed

app = App(
    name="calibrant",
    help="Judge, calibrate and automate classifiers with a promised accuracy, and train them.",
    version=__version__,
    # Ctrl-C reaches `run` below, which prints the line that a command leaves behind (how to go on).
    suppress_keyboard_interrupt=False,
)

# What `calibrant[train]` installs beside the judging half.
_OF_TRAIN = ("torch", "lightning", "torchmetrics", "safetensors", "sklearn", "tomli_w")

# Import paths, not functions: `calibrant --help` must not wait for torch.
_COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("calibrant.cli.demo:demo", "Train on handwritten digits, judge real predictions, write a page."),
    "train": ("calibrant.cli.train:train", "Train a classifier and leave a run folder."),
    "predict": ("calibrant.cli.train:predict", "Predict again with the network of a run and other views."),
    "methods": ("calibrant.cli.methods:main", "List the training methods, or the settings of one."),
    "data": ("calibrant.cli.data:app", "List, download and check image sets."),
    "evaluate": ("calibrant.cli.evaluate:evaluate", "Say how accurate and how well calibrated predictions are."),
    "calibrate": ("calibrant.cli.calibrate:calibrate", "Fit a calibrator on validation predictions, apply it to test."),
    "route": ("calibrant.cli.route:app", "Choose what to automate and what to send to a person."),
    "export": ("calibrant.cli.export:export", "Write one ONNX file with calibration and routing inside."),
    "monitor": ("calibrant.cli.monitor:monitor", "Test whether the promise of a rule still holds."),
    "purge": ("calibrant.cli.purge:purge", "Forget ids and other facts of old decisions in a log."),
    "serve": ("calibrant.cli.serve:serve", "Serve an exported file over HTTP and log every decision."),
    "compare": ("calibrant.cli.compare:compare", "Run methods over seeds and data sets; the paper's tables."),
    "ablate": ("calibrant.cli.ablate:ablate", "Vary one setting of the method over the paper's grid."),
    "sweep": ("calibrant.cli.sweep:sweep", "Search for settings that are accurate, calibrated and cheap at once."),
    "record": ("calibrant.cli.record:record", "Write what finished runs measured as JSON for results/."),
    "report": ("calibrant.cli.report:report", "Write one page on what a model may decide alone."),
}
for _name, (_path, _help) in _COMMANDS.items():
    app.command(_path, name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is None:
        arguments = sys.argv[1:]
    code = run(arguments)
    # torch takes seconds to end. All is done and said: a second Ctrl-C would only add its traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code."""
    code = 0
    if sys.stdout is None:  # closed by the caller (`>&-`): nobody wants to read it
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the program runs)
    try:
        code = _run(arguments)
        # Here, not when Python ends: a full disk must not look like a check that failed.
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough.
        _drop_output()
    except SystemExit as error:
        # rich ends the program with 1 for the same reason; here that code means a failed check.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
    except OSError as error:
        _drop_output()
        what = "write standard output"
        if error.filename is not None:
            what = f"read or write {error.filename}"
        return _complain(f"cannot {what}: {error.strerror or error}.", code=2)
    except MemoryError:
        return _complain("there is not enough memory for this input.", code=2)
    except Exception as error:  # noqa: BLE001 (whatever nobody foresaw is our fault)
        if os.environ.get("CALIBRANT_DEBUG"):
            traceback.print_exc()
        from calibrant.own_code import unexpected

        return _complain(*unexpected(error))
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        with plain_warnings():
            app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except CheckFailed as error:
        return _complain(error, code=1)
    except MissingArgumentError as error:
        return _complain(f"{error} See: calibrant {' '.join(error.command_chain or ())} --help", code=2)
    except (CalibrantError, CycloptsError) as error:
        return _complain(error, code=2)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _OF_TRAIN:
            raise
        return _complain(f"this needs {name}. Install it with: pip install 'calibrant[train]'", code=2)
    except KeyboardInterrupt as error:
        return _complain(str(error) or "interrupted", code=130)
    return 0


def _drop_output() -> None:
    """Discard what is still buffered: Python would try to write it again when it ends, and fail again."""
    # Under a test, standard output has no descriptor.
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _complain(error: object, code: int) -> int:
    complain(error)
    return code
