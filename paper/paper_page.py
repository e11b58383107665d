"""`docs/paper.md`, written from `results/` alone: the verdict on each claim of the paper, on one screen."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from calibrant.studies import read_records
from calibrant.studies.result_tables import metric_label
from calibrant.tables import Table
from paper.beside import agreement_total, cost_of_missing_runs
from paper.claims import CLAIMS, WITHOUT, Claim, Comparison, Outcome, comparisons, covered, deciding, verdict
from paper.readings import COMPARED, mean_distances, measured_readings, printed_rows
from paper.runs import Groups, group_records, in_words

TABLES = "paper-tables.md"
_HEAD = """<!-- Written by docs/make/paper.py from results/*.json. Change those, not this. -->
# The paper, claim by claim

Patra and others, [*Calibrating Deep Neural Networks using Explicit Regularisation and Dynamic Data
Pruning*](https://arxiv.org/abs/2212.10005), WACV 2023: a Huber term beside the focal loss, and removal of the least
confident samples during training. No code was published. We ran it again.
"""
_LEGEND = f"""\
**For / against / open**: how many comparisons support the claim, contradict it, or are inconclusive. There is one for
each data set, network and other method. One against makes a claim *not reproduced*; *reproduced* needs all for it
([the rule]({TABLES})). Each claim links to its comparisons. The last column has the clearest of those that decide.

**Methods.** `flsd` is the focal loss, `+h` adds the Huber term, `+p` pruning, `+p-ema` pruning by a moving average of
the confidence. `+random` leaves out random samples instead. The paper's method is `flsd+h+p-ema`.

**Metrics.** TE is the test error, |S95| the share of test samples with a confidence above 0.95, and ECE(S95) their ECE.
All use 10 bins and no temperature, as in the paper.
"""
_READINGS = f"""\
The paper leaves open when and how samples are removed. The verdicts above are those of the recommended reading. This
table compares all readings that we ran on CIFAR-10 with the row that the paper prints. Figures are in percent, after
the last epoch, means over seeds.

- **From the first drop** of the learning rate, or **from epoch 40**: every few epochs the least confident samples of
  each class leave for good. **May return**: removed samples are scored again at each cut. **In each minibatch**: the
  least confident of each class leave there. **The most confident instead**: they leave, the others stay.
- **Updates**: share of the updates of a run without pruning, with ResNet-32 / ResNet-50.
- **Distance**: mean absolute difference of the three figures from the printed ones, in percentage points, with
  ResNet-32 / ResNet-50 / the mean of both.

Seeds and best epochs are in [the tables]({TABLES}#readings-of-the-pruning), as are the
[claims under each reading]({TABLES}#claims-under-each-reading).
"""
_KNOWN = """## What the paper does not say

These are facts about the printed paper:

- It does not give the share that is pruned on CIFAR-10, SVHN and Mendeley, nor the epoch at which pruning starts.
- Every entry of its tables looks like one run. There are no seeds and no error bars.
- On Mendeley, |S95| and error are the same number (22.27). One of them is probably a misprint.
- In three of its tables another method has a lower ECE than its own.

A fact about our runs: readings of the pruning that save the printed 40 % of the training time leave 3 to 28 % of the
samples. With all of them the error on ResNet-50 is about twice the printed one.

## What we guess

- The printed row for CIFAR-10 with ResNet-50 comes from a run in which hardly any sample was removed. FLSD+H without
  pruning agrees with four of its five numbers.
- The weight of DCA was too large in its rows.
- The MMCE rows are NLL in effect, because public code divides the term by the number of pairs twice.

[Row by row](paper-tables.md#beside-the-paper).

## What we would ask the authors

1. Which share of the samples was removed at a time, from which epoch on, and how many were left at the end?
2. Is a removed sample gone for good, or is it scored again?
3. Are the least confident samples chosen in the whole data set or in each minibatch?
4. Do the tables report the last epoch or the best one?
5. How many seeds are behind a row?
6. How was the training time measured?
7. What were the weights of DCA, MMCE and MDCA, and the gamma of the focal loss, in each table?
"""
_OUTCOMES: tuple[Outcome, ...] = ("supports", "contradicts", "inconclusive")
_SPACE = "\N{NO-BREAK SPACE}"
_SLASH = f"{_SPACE}/{_SPACE}"
_REPRODUCED, _NOT_REPRODUCED, _UNDECIDED = "**reproduced**", f"**not{_SPACE}reproduced**", "**undecided**"


def paper_page(folder: str | Path) -> str:
    """Return the page as Markdown."""
    groups = group_records(read_records(folder))
    claims = [_claim_row(claim, groups) for claim in CLAIMS if claim.in_print]
    claims += _claims_without_comparison(groups)
    controls = [_claim_row(claim, groups) for claim in CLAIMS if not claim.in_print]
    agreeing = f"{agreement_total(groups)} [Number by number]({TABLES}#beside-the-paper)."
    summary = textwrap.fill(f"{_count(claims)} {_nearest(groups)}", 120, break_on_hyphens=False)
    parts = [
        _HEAD,
        f"{summary}\n\n{_verdicts(claims)}\n{_parts(groups)}{_LEGEND}",
        f"## Controls that the paper does not have\n\n{_verdicts(controls)}",
        f"## Readings of the pruning\n\n{_READINGS}\n{_readings(groups)}",
        f"## How many printed numbers agree\n\n{agreeing}",
        _KNOWN,
        f"## What was not run\n\n{cost_of_missing_runs(groups)} [The list]({TABLES}#what-was-not-run).",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


_Row = tuple[str, str, str, str]
"""A claim, its verdict, the counts of its comparisons, and the clearest comparison."""


def _count(claims: Sequence[_Row]) -> str:
    verdicts = [row[1] for row in claims]
    words = {_NOT_REPRODUCED: "not reproduced", _UNDECIDED: "undecided", _REPRODUCED: "reproduced"}
    counts = ", ".join(f"{verdicts.count(verdict)} {word}" for verdict, word in words.items())
    return f"**Of {len(claims)} claims: {counts}.**"


def _parts(groups: Groups) -> str:
    """Say what each part of the method does, if a comparison shows it."""
    by_title = {claim.title: claim for claim in CLAIMS}
    text = ""
    huber = _places(by_title["The Huber term calibrates"], "supports", groups)
    if huber:
        text += f"**The Huber term** lowers ECE on {' and '.join(huber)}. Elsewhere we cannot tell.\n\n"
    pruning = _places(by_title["Accuracy kept"], "contradicts", groups, other=WITHOUT)
    if pruning:
        lines = textwrap.fill(
            f"**The pruning** costs accuracy, compared with the same loss on all data: {', '.join(pruning)}.", 120
        )
        text += f"{lines}\n\n"
    return text


def _places(claim: Claim, outcome: Outcome, groups: Groups, other: str = "") -> list[str]:
    """Return where comparisons that decide have an outcome, with the difference if another method is named."""
    places = []
    for test in deciding(comparisons(claim, groups)):
        if test.outcome == outcome and other in ("", test.other):
            place = in_words(test.place)
            if other:
                place = f"{100 * test.difference:+.1f} points of error ({place})"
            places.append(place)
    return places


def _nearest(groups: Groups) -> str:
    """Say which reading comes nearest to the printed rows, and what it saves."""
    found = [each for each in measured_readings(groups) if each.epoch == "last"]
    if not found:
        return "No reading was run yet."
    means = mean_distances(groups)
    pruned = {each.reading for each in found if each.pruned}
    nearest = next((name for name in means if name in pruned), None)
    if nearest is None:
        return "No reading was run on every network yet."
    saved = {f"{100 * (1 - each.records[0].seen_share):.0f} %" for each in found if each.reading == nearest}
    text = (
        f"The reading of the pruning that comes nearest to the printed rows for CIFAR-10 is *{nearest}* "
        f"({means[nearest]:.2f} points off). It saves {' or '.join(sorted(saved))} of the updates; the paper prints "
        "40 % of the time."
    )
    first, distance = next(iter(means.items()))
    if first not in pruned:
        text += f" No pruning at all is nearer still ({distance:.2f} points off)."
    return text


def _claim_row(claim: Claim, groups: Groups) -> _Row:
    found = comparisons(claim, groups)
    outcomes = [comparison.outcome for comparison in deciding(found)]
    counts = _SLASH.join(str(outcomes.count(outcome)) for outcome in _OUTCOMES)
    link = f"[{claim.statement.rstrip('.')}]({TABLES}#{_anchor(claim.title)})"
    return link, f"**{verdict(found).replace(' ', _SPACE)}**", counts, _clearest(found, claim)


def _claims_without_comparison(groups: Groups) -> list[_Row]:
    there, missing = covered(groups)
    where = f"run on {in_words(there) or 'none'}"
    if missing:
        where += f"; not run: {in_words(missing)}"
    return [
        (f"[The method works on five data sets]({TABLES}#on-five-data-sets)", _UNDECIDED, "-", where),
        (
            f"[The method saves 40 % of the training time]({TABLES}#time-saved)",
            _UNDECIDED,
            "-",
            "we chose our readings to fit the printed times",
        ),
    ]


def _verdicts(rows: Sequence[_Row]) -> str:
    heads = ("claim", "verdict", f"for{_SLASH}against{_SLASH}open", "clearest comparison")
    return Table("", rows, heads).markdown()


def _clearest(found: Sequence[Comparison], claim: Claim) -> str:
    """Describe one of the comparisons that decide: the one with the largest difference in units of its interval."""
    if not found:
        return "not run"
    order: tuple[Outcome, ...] = ("contradicts", "inconclusive", "supports")
    first = min(
        deciding(found), key=lambda test: (order.index(test.outcome), -abs(test.difference) / (test.half or 1.0))
    )
    other = first.other.partition(" (")[0]
    return (
        f"{in_words(first.place)}: {metric_label(claim.metric)} {100 * first.ours:.2f}{_SPACE}%, with `{other}` "
        f"{100 * first.theirs:.2f}{_SPACE}%"
    )


def _readings(groups: Groups) -> str:
    """Return a line for each reading, with both networks side by side, below the paper's own rows."""
    found = [each for each in measured_readings(groups) if each.epoch == "last"]
    if not found:
        return ""
    networks = printed_rows()
    names = [in_words([row.model]) for row in networks]
    metrics = _SLASH.join(metric_label(metric) for metric in COMPARED)
    heads = ("reading", "updates", *(f"{name}: {metrics}" for name in names), "distance")
    printed = (_SLASH.join(f"{100 * row.value(metric):.2f}" for metric in COMPARED) for row in networks)
    rows = [("**the paper, as printed**", "", *printed, "")]
    means = mean_distances(groups)
    for reading in dict.fromkeys([*means, *(each.reading for each in found)]):
        by_network = {each.row: each for each in found if each.reading == reading}
        updates = []
        figures = []
        distances = []
        for row in networks:
            if row in by_network:
                measured = by_network[row]
                updates.append(measured.updates)
                figures.append(_SLASH.join(f"{100 * (each.mean or 0.0):.2f}" for each in measured.figures.values()))
                distances.append(f"{measured.distance:.2f}")
            else:
                updates.append("-")
                figures.append("not run")
                distances.append("-")
        distances.append(f"{means[reading]:.2f}" if reading in means else "-")
        rows.append((reading, _SLASH.join(updates), *figures, _SLASH.join(distances)))
    return Table("", rows, heads).markdown()


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MkDocs make it."""
    kept = [letter for letter in heading.lower() if letter.isalnum() or letter in " -_"]
    return "".join(kept).replace(" ", "-")
