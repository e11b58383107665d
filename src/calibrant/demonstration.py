"""The demonstration: train on handwritten digits, judge recorded predictions and write the page."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from calibrant import samples
from calibrant.decisions import Policy, check_promise, fit_policy
from calibrant.metrics import evaluate
from calibrant.predictions import Predictions
from calibrant.report import write_report
from calibrant.tables import Table

__all__ = ["run_demo"]

_PLAIN = "plain training"
_RECOMMENDED = "recommended"
# Two recorded runs of the same network with the same number of updates.
_SAMPLES = {_RECOMMENDED: "cifar10-resnet32-nll-averaged", _PLAIN: "cifar10-resnet32-nll"}
_PROMISED = 0.99


def run_demo(
    folder: str | Path, *, epochs: int = 30, n_resamples: int = 1000, say: Callable[[str], None] = print
) -> Path:
    """Train on the digits, then evaluate, calibrate, route and report real CIFAR-10 predictions.

    Without torch, only the second part runs.

    Args:
        folder: Folder of the runs and the report. What is finished there is not run again.
        epochs: Epochs of each run on the digits.
        n_resamples: Resamples behind the intervals.
        say: Called with each line or table.

    Returns:
        The report.
    """
    out = Path(folder)
    if find_spec("torch") is None:
        say("1. Training needs torch, so this step is left out. Install it with: pip install 'calibrant[train]'")
    else:
        say("1. Training on handwritten digits: plain cross-entropy, and the recommended recipe with as many updates.")
        say(_train_on_digits(out, epochs, n_resamples).terminal())
    say("2. Judging real predictions: two recorded runs of ResNet-32 on the 10,000 test images of CIFAR-10.")
    page = _judge_samples(out, n_resamples, say)
    say(f"report: {page}")
    return page


def _train_on_digits(out: Path, epochs: int, n_resamples: int) -> Table:
    import torch

    from calibrant.training import default_recipe, make_reporter, train_or_resume

    # With so small a network, threads spend more time waiting for each other than working.
    torch.set_num_threads(1)
    recommended = default_recipe("digits", epochs=epochs)
    plain = recommended.changed({"schedule.average": 0.0, "schedule.floor": 0.0})
    rows = []
    for name, recipe in ((_RECOMMENDED, recommended), (_PLAIN, plain)):
        run = train_or_resume(recipe, out / name.replace(" ", "-"), reporter=make_reporter())
        result = evaluate(run.predictions("test"), n_resamples=n_resamples)
        rows.append((name, *(result.with_interval(metric) for metric in ("test_error", "ece", "share@0.95"))))
    one_image = f"one image is {100 / result.n:.2f} %, so small differences are chance"
    caption = f"{result.n} test images, 95 % intervals; {one_image}."
    return Table("Handwritten digits", rows, ("training", "error", "ECE", "|S95|"), caption)


def _judge_samples(out: Path, n_resamples: int, say: Callable[[str], None]) -> Path:
    """Calibrate and route recorded predictions, and write the page."""
    test = {name: samples.load(sample) for name, sample in _SAMPLES.items()}
    policies = {}
    for name, sample in _SAMPLES.items():
        policies[name] = fit_policy(samples.load(sample, "val"), _PROMISED, share=0.1)
    rows = [_judged_row(name, test[name], policies[name]) for name in test]
    heads = ("training", "error", "ECE", "ECE, calibrated", "T", "automated", "right")
    caption = (
        f"In percent. T: the temperature. Automated: the share above the threshold that promises {_PROMISED:.0%}. "
        "Temperature and threshold were "
        "chosen on 5,000 other images; right: how many of the automated answers are right on the test images."
    )
    say(Table("CIFAR-10, ResNet-32, recorded runs", rows, heads, caption).terminal())
    return write_report(
        test,
        out / "report.html",
        policy=policies,
        title="What may a CIFAR-10 model decide alone?",
        n_resamples=n_resamples,
    )


def _judged_row(name: str, predictions: Predictions, policy: Policy) -> tuple[str, ...]:
    calibrated = policy.calibrate(predictions)
    before = evaluate(predictions)
    checked = check_promise(policy.routing, calibrated)
    group = checked.groups[0]
    return (
        name,
        f"{100 * before.test_error:.2f}",
        f"{100 * before.ece:.2f}",
        f"{100 * evaluate(calibrated).ece:.2f}",
        f"{getattr(policy.calibrator, 'temperature_', 1.0):.2f}",
        f"{100 * group.automated / checked.cases:.1f}",
        "-" if group.accuracy is None else f"{100 * group.accuracy:.2f}",
    )
