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

Patra and others: *Calibrating Deep Neural Networks using Explicit Regularisation and Dynamic Data Pruning*, WACV 2023.
The method adds a Huber term to the focal loss and removes the least confident samples during training. The authors
published no code. We ran it again.
"""
_LEGEND = f"""\
**Comparisons** are over data sets, networks and other methods. The numbers say how many support the claim, contradict
it, or are inconclusive. One that contradicts makes a claim *not reproduced*; *reproduced* needs the support of all
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

- **Updates**: share of the updates of a run without pruning.
- **Distance**: mean absolute difference of the three figures from the printed ones, in percentage points.

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
_UNDECIDED = "**undecided**"
_SLASH = "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}"


def paper_page(folder: str | Path) -> str:
    """Return the page as Markdown."""
    groups = group_records(read_records(folder))
    claims = [_claim_row(claim, groups) for claim in CLAIMS if claim.in_print]
    claims += _claims_without_comparison(groups)
    controls = [_claim_row(claim, groups) for claim in CLAIMS if not claim.in_print]
    agreeing = f"{agreement_total(groups)} [Number by number]({TABLES}#beside-the-paper)."
    parts = [
        _HEAD,
        f"{_in_short(claims, groups)}\n\n## Verdicts\n\n{_verdicts(claims)}\n{_LEGEND}",
        f"## Controls that the paper does not have\n\n{_verdicts(controls)}",
        f"## Readings of the pruning\n\n{_READINGS}\n{_readings(groups)}",
        f"## How many printed numbers agree\n\n{agreeing}",
        _KNOWN,
        f"## What was not run\n\n{cost_of_missing_runs(groups)} [The list]({TABLES}#what-was-not-run).",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


_Row = tuple[str, str, str, str]
"""A claim, its verdict, the counts of its comparisons, and the clearest comparison."""


def _in_short(claims: Sequence[_Row], groups: Groups) -> str:
    """Return list items: the verdicts, what helps, what does not, and the nearest reading."""
    verdicts = [row[1].strip("*") for row in claims]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("reproduced", "not reproduced", "undecided"))
    lines = [f"- **Of {len(claims)} claims**: {counts}."]
    by_title = {claim.title: claim for claim in CLAIMS}
    huber = _places(by_title["The Huber term calibrates"], "supports", groups)
    if huber:
        lines.append(f"- **The Huber term lowers ECE** on {' and '.join(huber)}. Elsewhere we cannot tell.")
    pruning = _places(by_title["Accuracy kept"], "contradicts", groups, other=WITHOUT)
    if pruning:
        lines.append(f"- **Pruning costs accuracy**, compared with the same loss on all data: {', '.join(pruning)}.")
    lines.append(f"- **The nearest reading of the pruning.** {_nearest(groups)}")
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


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
        f"*{nearest[0].upper()}{nearest[1:]}*: {means[nearest]:.2f} points from the printed rows for CIFAR-10, on "
        f"average. It saves {' or '.join(sorted(saved))} of the updates; the paper prints 40 % of the time."
    )
    first, distance = next(iter(means.items()))
    if first not in pruned:
        text += f" No pruning at all is nearer still ({distance:.2f} points)."
    return text


def _claim_row(claim: Claim, groups: Groups) -> _Row:
    found = comparisons(claim, groups)
    outcomes = [comparison.outcome for comparison in deciding(found)]
    counts = _SLASH.join(str(outcomes.count(outcome)) for outcome in _OUTCOMES)
    link = f"[{claim.statement.rstrip('.')}]({TABLES}#{_anchor(claim.title)})"
    return link, f"**{verdict(found)}**", counts, _clearest(found, claim)


def _claims_without_comparison(groups: Groups) -> list[_Row]:
    there, missing = covered(groups)
    where = f"run on {in_words(there) or 'none'}"
    if missing:
        where += f"; not run: {in_words(missing)}"
    return [
        (f"[The method works on five data sets]({TABLES}#on-five-data-sets)", _UNDECIDED, "-", where),
        (
            f"[It takes 40 % less training time]({TABLES}#time-saved)",
            _UNDECIDED,
            "-",
            "we chose our readings to fit the printed times",
        ),
    ]


def _verdicts(rows: Sequence[_Row]) -> str:
    heads = ("claim", "verdict", "support / contradict / inconclusive", "clearest comparison")
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
        f"{in_words(first.place)}: {metric_label(claim.metric)} {100 * first.ours:.2f} %, with `{other}` "
        f"{100 * first.theirs:.2f} %"
    )


def _readings(groups: Groups) -> str:
    """Return a line for each reading, with both networks side by side, below the paper's own rows."""
    found = [each for each in measured_readings(groups) if each.epoch == "last"]
    if not found:
        return ""
    printed = printed_rows()
    means = mean_distances(groups)
    heads = ["reading"]
    first = ["**the paper, as printed**"]
    for row in printed:
        name = in_words([row.model])
        heads += [
            f"{name}: updates, %",
            f"{name}: {_SLASH.join(metric_label(metric) for metric in COMPARED)}",
            "distance",
        ]
        first += ["", _SLASH.join(f"{100 * row.value(metric):.2f}" for metric in COMPARED), ""]
    rows = [(*first, "")]
    others = [each.reading for each in found if each.reading not in means]
    for reading in dict.fromkeys([*means, *others]):
        cells = [reading]
        for row in printed:
            measured = [each for each in found if (each.reading, each.row) == (reading, row)]
            cells += ["not run", "", ""]
            if measured:
                figures = _SLASH.join(f"{100 * (figure.mean or 0.0):.2f}" for figure in measured[0].figures.values())
                cells[-3:] = [measured[0].updates, figures, f"{measured[0].distance:.2f}"]
        mean = ""
        if reading in means:
            mean = f"{means[reading]:.2f}"
        rows.append((*cells, mean))
    return Table("", rows, (*heads, "mean distance")).markdown()


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MkDocs make it."""
    kept = [letter for letter in heading.lower() if letter.isalnum() or letter in " -_"]
    return "".join(kept).replace(" ", "-")
