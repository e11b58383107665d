"""Say what may be automated of the answers of OCR, of language identification, and of a cascade of two identifiers.

    python examples/other_systems/judge.py words.csv languages.csv --draws 1000

For each system, half of the cases choose a rule and the other half makes a page. Then the whole table serves as the
population: in each draw a team gets labelled cases of its own, half as many, drawn with replacement, and chooses a
threshold. The accuracy that counts is that on the whole table, which is known exactly.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant import Predictions
from calibrant.calibration import make_calibrator
from calibrant.decisions import Policy, choose_threshold
from calibrant.report import write_report

Mask = Any  # one truth value per case
Automate = Callable[[Predictions], tuple[Mask, Mask]]  # which cases are automated, and which answers are right
Choose = Callable[[Predictions, float], Automate]
FITTING = 0.25  # share of a team's cases that fixes the path of the cascade


@dataclass(frozen=True)
class System:
    """A system that is judged.

    Attributes:
        name: For the tables and the page.
        cases: All labelled cases.
        options: Further arguments of `choose_threshold`.
        cascade: Whether the cases have the answers of a second system, which is asked if the first is not sure.
    """

    name: str
    cases: Predictions
    options: dict[str, Any] = field(default_factory=dict)
    cascade: bool = False


# -- ways to choose a threshold ----------------------------------------------------------------------------------------


def fixed(_: Predictions, target: float, *, threshold: float | None = None) -> Automate:
    """The same confidence whatever the cases say; None to take the confidence at its word."""
    least = target
    if threshold is not None:
        least = threshold
    return lambda cases: (cases.confidence >= least, cases.correct)


def by_hand(labelled: Predictions, target: float) -> Automate:
    """What people do: the lowest threshold at which enough of the labelled cases are right."""
    grid = np.linspace(0.0, 1.0, 101)
    if labelled.kind == "score":
        grid = np.quantile(labelled.confidence, grid)
    for threshold in grid:
        automated = labelled.confidence >= threshold
        if automated.any() and labelled.correct[automated].mean() >= target:
            return fixed(labelled, target, threshold=threshold)
    return fixed(labelled, target, threshold=np.inf)


def promised(labelled: Predictions, target: float, **options: Any) -> Automate:
    """The lowest threshold whose accuracy can be promised."""
    rule = choose_threshold(labelled, target, **options)
    return lambda cases: (rule.decide_all(cases.as_right_or_wrong()).automate, cases.correct)


def cascaded(labelled: Predictions, target: float, *, choose: Choose) -> Automate:
    """The cheap system first, the other one if it is not sure, a person if neither is."""
    fitting, rest = labelled.split(FITTING)
    least = path_of(fitting, target)
    automate = choose(cascade(rest, least), target)
    return lambda cases: automate(cascade(cases, least))


def raw_cascade(_: Predictions, target: float) -> Automate:
    """The same, with both confidences taken at their word."""

    def automate(cases: Predictions) -> tuple[Mask, Mask]:
        both = cascade(cases, target)
        return both.confidence >= target, both.correct

    return automate


def cascade(cases: Predictions, least: float) -> Predictions:
    """One answer and one score per case, for a path of both thresholds.

    The cheap answer is taken if its confidence is at least `least`, else the other one. The score ranks all cheap
    answers above the others. A falling threshold on it first lowers the threshold of the cheap system down to `least`
    and then that of the other, so a threshold on this score is a pair of thresholds.
    """
    taken = cases.confidence >= least
    predicted = np.where(taken, cases.predicted, cases.extras["other"])
    score = np.where(taken, 1.0 + cases.confidence, cases.extras["other_confidence"])
    return Predictions.from_confidence(predicted, score, cases.targets, kind="score", classes=cases.class_names)


def path_of(fitting: Predictions, target: float) -> float:
    """The confidence from which on the cheap system is believed: that which automates most of the fitting share."""
    best, most = np.inf, -1.0
    for least in [*np.linspace(0.5, 1.0, 26), 0.999, np.inf]:
        both = cascade(fitting, least)
        order = np.argsort(-both.confidence, kind="stable")
        accuracy = both.correct[order].cumsum() / np.arange(1, len(order) + 1)
        kept = np.flatnonzero(accuracy >= target)
        share = (kept.max(initial=-1) + 1) / len(order)
        if share > most:
            best, most = least, share
    return best


# -- draws -------------------------------------------------------------------------------------------------------------


def drawn(system: System, rng: np.random.Generator) -> Predictions:
    """The labelled cases of one team: cases, or whole clusters, with replacement."""
    column = system.options.get("clusters")
    if column is None:
        return system.cases.subset(rng.integers(len(system.cases), size=len(system.cases) // 2))
    members = system.cases.extras[column]
    rows_of = [np.flatnonzero(members == name) for name in np.unique(members)]
    rows = [rows_of[number] for number in rng.integers(len(rows_of), size=len(rows_of) // 2)]
    cases = system.cases.subset(np.concatenate(rows)).as_right_or_wrong()
    numbers = np.repeat(np.arange(len(rows)), [len(own) for own in rows])  # one that is drawn twice counts as two
    extras = {column: numbers}
    return Predictions.from_confidence(cases.predicted, cases.confidence, cases.targets, extras=extras)


def compare(system: System, ways: dict[str, Choose], target: float, draws: int) -> None:
    """Print how much each way automates, and how often its accuracy is below the target."""
    groups = [np.ones(len(system.cases), dtype=np.bool_)]
    if "per_group" in system.options:
        values = system.cases.extras[system.options["per_group"]]
        groups = [values == name for name in np.unique(values)]
    print(f"\n{system.name}: {100 * target:g} %, {draws:,} draws of {len(system.cases) // 2:,} cases\n")
    print("| way | automated % | accuracy % | below the target, % of draws |\n| --- | ---: | ---: | ---: |")
    for name, choose in ways.items():
        rng = np.random.default_rng(0)
        shares, accuracies, below = [], [], 0
        for _ in range(draws):
            automated, correct = choose(drawn(system, rng), target)(system.cases)
            shares.append(automated.mean())
            if automated.any():
                accuracies.append(correct[automated].mean())
            below += any((automated & own).any() and correct[automated & own].mean() < target for own in groups)
        accuracy = 100 * np.mean(accuracies or [np.nan])
        print(f"| {name} | {100 * np.mean(shares):.1f} | {accuracy:.2f} | {100 * below / draws:.1f} |", flush=True)


def write_page(system: System, out: Path, target: float) -> None:
    """Choose on one half and show the other half."""
    labelled, later = system.cases.split(0.5, clusters=system.options.get("clusters"))
    policy, options = Policy(2, class_names=labelled.as_right_or_wrong().class_names), dict(system.options)
    if system.cascade or labelled.kind == "score":
        fitting, labelled = labelled.split(FITTING)
        if system.cascade:
            least = path_of(fitting, target)
            fitting, labelled, later = (cascade(some, least) for some in (fitting, labelled, later))
            print(f"The second system is asked in {100 * (later.confidence < 1).mean():.0f} % of the cases.")
        # A page shows confidences, so scores that are only ranked get a scale first.
        policy = policy.with_calibrator(make_calibrator("platt").fit(fitting))
        options |= {"search": "split", "fitting": policy.calibrate(fitting)}
    policy = policy.with_rule(choose_threshold(policy.calibrate(labelled), target, **options))
    write_report({system.name: later}, out, policy=policy, groups=system.options.get("per_group"))
    print(policy.describe())


# -- the systems -------------------------------------------------------------------------------------------------------


def answers(path: Path, name: str, column: Literal["confidence", "score"] = "confidence") -> Predictions:
    """What one of the identifiers said."""
    return Predictions.load(path, kind=column, columns={"predicted": name, "confidence": f"{name}_{column}"})


def both_answers(path: Path) -> Predictions:
    """What the cheap identifier said, with the answers of the other one as further columns."""
    cheap = answers(path, "langid")
    other = answers(path, "lingua").recoded(cheap.class_names or ())
    extras = {"other": other.predicted, "other_confidence": other.confidence}
    classes = other.class_names
    return Predictions.from_confidence(cheap.predicted, cheap.confidence, cheap.targets, classes=classes, extras=extras)


def systems(words: Path, languages: Path) -> dict[str, tuple[Callable[[], System], dict[str, Choose]]]:
    """For each page: how the system is read, and the ways that are compared."""
    simple: dict[str, Choose] = {"by hand": by_hand, "raw confidence": fixed}
    simple["fixed .85"] = partial(fixed, threshold=0.85)
    by_page, by_length = {"clusters": "page"}, {"per_group": "length"}

    def tesseract() -> System:
        return System("tesseract", Predictions.load(words), by_page)

    def langid() -> System:
        return System("langid", answers(languages, "langid"))

    def ranked() -> System:
        return System("langid, log-probability", answers(languages, "langid", "score"))

    def lingua() -> System:
        return System("lingua", answers(languages, "lingua"))

    def lingua_by_length() -> System:
        return System("lingua by length", answers(languages, "lingua"), by_length)

    def langid_then_lingua() -> System:
        return System("langid, then lingua", both_answers(languages), cascade=True)

    return {
        "words": (tesseract, {"promised": partial(promised, **by_page), **simple, "pages ignored": promised}),
        "langid": (langid, {"promised": promised, **simple}),
        "langid-score": (ranked, {"promised": promised, "by hand": by_hand}),
        "lingua": (lingua, {"promised": promised, **simple}),
        "lingua-length": (lingua_by_length, {"promised": partial(promised, **by_length), **simple}),
        "cascade": (
            langid_then_lingua,
            {
                "promised": partial(cascaded, choose=promised),
                "by hand": partial(cascaded, choose=by_hand),
                "raw confidence": raw_cascade,
            },
        ),
    }


def main() -> None:
    """Judge the systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", type=Path)
    parser.add_argument("languages", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.95, 0.98])
    parser.add_argument("--only", nargs="+", help="names of pages")
    parser.add_argument("--out", type=Path, default=Path("pages"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, (read, ways) in systems(options.words, options.languages).items():
        if options.only and name not in options.only:
            continue
        started = time.perf_counter()
        system = read()
        write_page(system, options.out / f"{name}.html", options.targets[0])
        print(f"From the table to {name}.html: {time.perf_counter() - started:.1f} s")
        for target in options.targets:
            compare(system, ways, target, options.draws)


if __name__ == "__main__":
    main()
