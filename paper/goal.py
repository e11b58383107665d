"""The goal: as accurate, as calibrated and as confident as NLL with temperature scaling, for 60 % of the updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrant.study.record import Record
from calibrant.study.summary import Row, summarise_row

DATA, MODEL, BASELINE, SEEDS = "cifar10", "resnet32", "nll", 3


@dataclass(frozen=True)
class Criterion:
    """One condition: what it says, the number found and the limit (fractions), whether it holds."""

    text: str
    found: float | None
    limit: float | None
    passed: bool


def criteria(plan: Row, baseline: Row) -> tuple[Criterion, ...]:
    """Check a plan against the baseline, both as means over seeds, 10 bins."""
    seeds = min(len(plan.seeds), len(baseline.seeds))
    error, base_error = plan.test["test_error"].mean, baseline.test["test_error"].mean
    share, base_share = plan.test["share@0.95"].mean, baseline.scaled["share@0.95"].mean
    ece_scaled, base_scaled = plan.scaled["ece"].mean, baseline.scaled["ece"].mean
    return (
        Criterion(f"at least {SEEDS} seeds of both", float(seeds), float(SEEDS), seeds >= SEEDS),
        _at_most("sample updates at most 60 %", plan.seen_share.mean, 0.60),
        _at_most("TE at most 0.2 above NLL", _minus(error, base_error), 0.002),
        _at_most("ECE at most 0.9", plan.test["ece"].mean, 0.009),
        _at_most("ECE +TS at most that of NLL +TS", ece_scaled, base_scaled),
        _within("|S95| within 1 point of NLL +TS", _minus(share, base_share), 0.01),
        _at_most("ECE(S95) at most 0.3", plan.test["ece@0.95"].mean, 0.003),
    )


def goal(groups: Mapping[str, Sequence[Record]]) -> dict[str, tuple[Criterion, ...]]:
    """The criteria of every plan that saves samples.

    Args:
        groups: Label to records on the goal's data set and network; the baseline under its own name.
    """
    if not groups.get(BASELINE):
        return {}
    baseline = summarise_row(BASELINE, groups[BASELINE])
    rows = [summarise_row(label, records) for label, records in groups.items() if label != BASELINE and records]
    return {row.label: criteria(row, baseline) for row in rows if (row.seen_share.mean or 1.0) < 0.999}


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _at_most(text: str, found: float | None, limit: float | None) -> Criterion:
    # A hair of tolerance for sums of decimals: 0.0935 - 0.0915 is not exactly 0.002.
    return Criterion(text, found, limit, found is not None and limit is not None and found <= limit + 1e-12)


def _within(text: str, found: float | None, limit: float) -> Criterion:
    return Criterion(text, found, limit, found is not None and abs(found) <= limit + 1e-12)
