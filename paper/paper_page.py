"""`docs/paper.md`, written from `results/` alone: the verdict on each claim of the paper, on one screen."""

from collections.abc import Sequence
from pathlib import Path

from calibrant.studies import read_records
from calibrant.studies.result_tables import metric_label
from calibrant.tables import Table
from paper.beside import agreement_total, cost_of_missing_runs
from paper.claims import CLAIMS, OURS, Claim, Comparison, Verdict, comparisons, covered, deciding, verdict
from paper.findings import TITLES
from paper.readings import READINGS_IN_WORDS, distances_without_pruning, nearest_readings
from paper.runs import Groups, group_records

TABLES = "paper-tables.md"
_HEAD = """<!-- Written by docs/make/paper.py from results/*.json. Change those, not this. -->
# The paper, claim by claim

Patra, Hebbalaguppe, Dash, Shroff, Vig: *Calibrating Deep Neural Networks using Explicit Regularisation and Dynamic Data
Pruning*, WACV 2023. The method adds a Huber term to the focal loss and removes the least confident samples during
training. The authors published no code. This page says which claims our runs reproduce. The runs are in
[the tables](paper-tables.md).
"""
_LEGEND = f"""A claim was tested in several comparisons: data sets, networks, other methods. The numbers count
those that support it, contradict it or are inconclusive. One that contradicts makes a claim *not reproduced*;
*reproduced* needs the support of all ([the rule]({TABLES})). The last column has the clearest of those that decide.

- **Methods**: `flsd` is the focal loss, `+h` adds the Huber term, `+p` pruning, `+p-ema` pruning by a moving average of
  the confidence. `+random` leaves out random samples instead. The paper's method is `flsd+h+p-ema`.
- **Metrics**: TE is the test error, |S95| the share of test samples with a confidence above 0.95, and ECE(S95) their
  ECE. They use 10 bins and no temperature, as in the paper.
"""
_OTHER_READINGS = """The paper leaves open how samples are pruned. This table has the same claims under each reading
that we ran. A cell counts the comparisons that support / contradict the claim / are inconclusive. The verdicts above
are those of the recommended reading.
"""
_WORDS: dict[Verdict, str] = {"holds": "Reproduced", "fails": "Not reproduced", "cannot tell": "Undecided"}
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


def paper_page(folder: str | Path) -> str:
    """Return the page as Markdown."""
    groups = group_records(read_records(folder))
    claims = [claim for claim in CLAIMS if claim.in_print]
    controls = [claim for claim in CLAIMS if not claim.in_print]
    parts = [
        _HEAD,
        f"## Verdicts\n\n{_summary(claims, groups)}\n\n{_verdicts(claims, groups)}\n\n{_LEGEND}",
        f"## Controls that the paper does not have\n\n{_verdicts(controls, groups)}",
        f"## Other readings of the pruning\n\n{_OTHER_READINGS}\n{_by_reading(groups)}\n{_nearest(groups)}",
        f"## How many printed numbers agree\n\n{agreement_total(groups)} [By table]({TABLES}#numbers-that-agree).",
        _KNOWN,
        f"## What was not run\n\n{cost_of_missing_runs(groups)} [The list]({TABLES}#what-was-not-run).",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _summary(claims: Sequence[Claim], groups: Groups) -> str:
    """Return list items: which claims have which verdict, and the two claims that have no comparison."""
    lines = []
    for outcome, words in _WORDS.items():
        statements = []
        for claim in claims:
            found = comparisons(claim, groups)
            if verdict(found) == outcome:
                statements.append(claim.statement + _supported(found))
        lines.append(f"- **{words}** ({len(statements)} of {len(claims)}): {' '.join(statements) or 'none.'}")
    there, missing = covered(groups)
    lines.append(f"- **Five data sets**: we ran the method on {_list(there)}.")
    if missing:
        lines[-1] += f" Not run: {_list(missing)}. So this claim is undecided."
    lines.append(
        "- **40 % less training time**: undecided. We chose our readings of the pruning to fit the printed times, so "
        f"our runs are no evidence ([table]({TABLES}#time-saved))."
    )
    return "\n".join(lines)


def _supported(found: Sequence[Comparison]) -> str:
    """Return where a claim is supported, if only some data sets or networks do and each has one comparison."""
    decide = deciding(found)
    places = [_list(test.place) for test in decide if test.verdict == "holds"]
    if not places or len(places) == len(decide) or len({test.place for test in decide}) < len(decide):
        return ""
    return f" (It does on {' and on '.join(places)}.)"


def _verdicts(claims: Sequence[Claim], groups: Groups) -> str:
    rows = []
    for claim in claims:
        found = comparisons(claim, groups)
        verdicts = [comparison.verdict for comparison in deciding(found)]
        counts = [str(verdicts.count(outcome)) for outcome in _WORDS]
        link = f"[{claim.statement}]({TABLES}#{_anchor(claim.title)})"
        rows.append((link, f"**{_WORDS[verdict(found)]}**", *counts, _clearest(claim, found)))
    heads = ("claim", "verdict", "support", "contradict", "inconclusive", "clearest comparison")
    return Table("", rows, heads).markdown().rstrip("\n")


def _by_reading(groups: Groups) -> str:
    """Return a table of the claims about pruning, with the counts of verdicts under each reading."""
    readings = list(dict.fromkeys(READINGS_IN_WORDS.values()))
    rows = []
    data_sets = set()
    for claim in CLAIMS:
        cells = []
        for reading in readings:
            settings = [variant for variant, words in READINGS_IN_WORDS.items() if words == reading]
            found = [test for test in comparisons(claim, groups) if test.variant in settings]
            verdicts = [test.verdict for test in found]
            if reading != READINGS_IN_WORDS[""]:
                data_sets |= {test.place[0] for test in found}
            counts = " / ".join(str(verdicts.count(outcome)) for outcome in _WORDS)
            cells.append(counts if verdicts else "-")
        if claim.ours == OURS and not claim.as_run and cells[1:] != ["-"] * len(cells[1:]):
            rows.append((claim.statement, *cells))
    if not rows:
        return ""
    table = Table("", rows, ("claim", *readings)).markdown()
    return f"{table}\nThe other readings were run on {_list(sorted(data_sets))} only.\n"


def _list(names: Sequence[str]) -> str:
    return ", ".join(TITLES.get(name, name) for name in names) or "none"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MkDocs make it."""
    kept = [letter for letter in heading.lower() if letter.isalnum() or letter in " -_"]
    return "".join(kept).replace(" ", "-")


def _clearest(claim: Claim, found: Sequence[Comparison]) -> str:
    """Describe one of the comparisons that decide: the one with the largest difference in units of its interval."""
    if not found:
        return "not run"
    order: tuple[Verdict, ...] = ("fails", "cannot tell", "holds")
    first = min(
        deciding(found), key=lambda test: (order.index(test.verdict), -abs(test.difference) / (test.half or 1.0))
    )
    other = first.other.partition(" (")[0]
    text = (
        f"{_list(first.place)}: {metric_label(claim.metric)} {100 * first.ours:.2f} % "
        f"with `{claim.ours}`, {100 * first.theirs:.2f} % with `{other}`"
    )
    if first.half is not None:
        text += f" (difference {100 * first.difference:+.2f} ± {100 * first.half:.2f})"
    return text


def _nearest(groups: Groups) -> str:
    nearest = nearest_readings(groups)
    if not nearest:
        return "No reading was run yet."
    sentences = [
        "**Which comes nearest.** The distance of a reading is the mean absolute difference of TE, ECE and |S95| from "
        "the paper's row on CIFAR-10, in percentage points."
    ]
    for model, (reading, distance) in nearest.items():
        if model in TITLES:
            sentences.append(f"With {TITLES[model]} the nearest reading is *{reading}* (distance {distance:.2f}).")
    if "overall" in nearest:
        reading, distance = nearest["overall"]
        sentences.append(f"Over both networks it is *{reading}* (mean distance {distance:.2f}).")
    for model, distance in distances_without_pruning(groups).items():
        if model in nearest and distance < nearest[model][1]:
            sentences.append(
                f"With {TITLES[model]}, FLSD+H without any pruning is nearer still (distance {distance:.2f})."
            )
    sentences.append(f"[All readings]({TABLES}#readings-of-the-pruning).")
    return " ".join(sentences)
