"""The demonstration: train on handwritten digits, then judge real predictions and write the page."""

from collections.abc import Callable
from pathlib import Path

from calibrant import samples
from calibrant.decisions import Policy, check_promise, fit_policy
from calibrant.metrics import Evaluation, evaluate
from calibrant.predictions import Predictions
from calibrant.report import Grid, to_terminal, write_report
from calibrant.training import Run, default_recipe, make_reporter, train_or_resume

_PLAIN, _RECOMMENDED = "plain training", "recommended"
# Two recorded runs of the same network with the same number of updates.
_SAMPLES = {_RECOMMENDED: "cifar10-resnet32-nll-averaged", _PLAIN: "cifar10-resnet32-nll"}
_PROMISED = 0.99


def run_demo(
    folder: str | Path,
    *,
    epochs: int = 30,
    seed: int = 0,
    n_resamples: int = 1000,
    say: Callable[[str], None] = print,
) -> Path:
    """Train on the digits, then evaluate, calibrate, route and report real CIFAR-10 predictions.

    Args:
        folder: Of the runs and the report; what is finished there is not run again.
        epochs: Epochs of each run on the digits.
        seed: Seed of the runs.
        n_resamples: Resamples behind the intervals.
        say: Called with each line or block for a person.

    Returns:
        The report.
    """
    import torch

    # The network is so small that threads wait for each other longer than they work, most of all on a busy machine.
    torch.set_num_threads(1)
    out = Path(folder)
    say("1. Training on handwritten digits: plain cross-entropy, and the recommended recipe with as many updates.")
    recommended = default_recipe("digits", epochs=epochs, seed=seed)
    plain = recommended.changed({"schedule.average": 0.0, "schedule.floor": 0.0})
    runs = {
        name: train_or_resume(recipe, out / name.replace(" ", "-"), reporter=make_reporter())
        for name, recipe in ((_RECOMMENDED, recommended), (_PLAIN, plain))
    }
    say(to_terminal(_digits_table(runs, n_resamples)))
    say("2. Judging real predictions: two recorded runs of ResNet-32 on the 10,000 test images of CIFAR-10.")
    validation = {name: samples.load(sample, "val") for name, sample in _SAMPLES.items()}
    test = {name: samples.load(sample) for name, sample in _SAMPLES.items()}
    policies = {name: fit_policy(cases, _PROMISED, share=0.1, seed=seed) for name, cases in validation.items()}
    say(to_terminal(_judged_table(test, policies)))
    page = write_report(
        test,
        out / "report.html",
        policy=policies,
        title="What may a CIFAR-10 model decide alone?",
        n_resamples=n_resamples,
    )
    say(f"report: {page}")
    return page


def _digits_table(runs: dict[str, Run], n_resamples: int) -> Grid:
    rows = []
    for name, run in runs.items():
        test = run.predictions("test")
        result = evaluate(test, n_resamples=n_resamples)
        cells = [_cell(result, metric) for metric in ("test_error", "ece", "share@0.95")]
        rows.append((name, *cells))
    heads = ("training", "error %", "ECE %", "|S95| %")
    one = f"one image is {100 / result.n:.2f} %, so small differences are chance"
    caption = f"{result.n} test images, 95 % intervals; {one}."
    return Grid("Handwritten digits", caption, heads, tuple(rows))


def _judged_table(test: dict[str, Predictions], policies: dict[str, Policy]) -> Grid:
    rows = []
    for name, predictions in test.items():
        policy = policies[name]
        calibrated = policy.calibrate(predictions)
        before, after = evaluate(predictions), evaluate(calibrated)
        checked = check_promise(policy.routing, calibrated)
        group = checked.groups[0]
        right = "-" if group.accuracy is None else f"{100 * group.accuracy:.2f}"
        errors = (f"{100 * before.test_error:.2f}", f"{100 * before.ece:.2f}", f"{100 * after.ece:.2f}")
        automated = f"{100 * group.automated / checked.cases:.1f}"
        numbers = {}
        if policy.calibrator is not None:
            numbers = policy.calibrator.fitted_numbers()
        temperature = numbers.get("temperature", 1.0)
        rows.append((name, *errors, f"{temperature:.2f}", automated, right))
    heads = ("training", "error", "ECE", "ECE, calibrated", "T", "automated", "right")
    caption = (
        f"In percent. T: the temperature. Automated: the share above the threshold that promises {_PROMISED:.0%}. "
        "Temperature and threshold were "
        "chosen on 5,000 other images; right: how many of the automated answers are right on the test images."
    )
    return Grid("CIFAR-10, ResNet-32, recorded runs", caption, heads, tuple(rows))


def _cell(evaluation: Evaluation, metric: str) -> str:
    value = evaluation.values()[metric]
    if value is None:
        return "-"
    interval = (evaluation.intervals or {}).get(metric)
    return _percent(value) + (f" ({_percent(interval[0])}-{_percent(interval[1])})" if interval else "")


def _percent(share: float) -> str:
    """Three digits that matter.

    >>> _percent(0.0082), _percent(0.9399), _percent(1.0)
    ('0.82', '94.0', '100')
    """
    percent = 100 * share
    return f"{percent:.2f}" if percent < 10 else f"{percent:.1f}" if percent < 99.95 else f"{percent:.0f}"
