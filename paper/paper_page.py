"""`docs/paper.md`, written from `results/` alone: the verdict on each claim of the paper, on one page."""

from collections.abc import Sequence
from pathlib import Path

from calibrant.studies import read_records
from calibrant.studies.result_tables import metric_label
from calibrant.tables import Table, counted
from paper.beside import agreement_counts, not_run
from paper.claims import CLAIMS, Claim, Comparison, Verdict, comparisons, covered, verdict
from paper.readings import BESIDE, distances_without_pruning, nearest_readings, readings_table
from paper.runs import Groups, group_records

TABLES = "paper-tables.md"
_HEAD = """<!-- Written by docs/make/paper.py from results/*.json. Change those, not this. -->
# The paper, claim by claim

Patra, Hebbalaguppe, Dash, Shroff, Vig: *Calibrating Deep Neural Networks using Explicit Regularisation and Dynamic Data
Pruning*, WACV 2023. The method adds a Huber term to the focal loss (`flsd+h`) and removes the least confident samples
during training (`+p-ema`). No code of the authors is public. This page says what our runs confirm, what they do not,
and what we would have to know. [All tables](paper-tables.md) have the runs behind it.
"""
_WORDS = {"holds": "Yes", "fails": "No", "cannot tell": "Not decided"}
_KNOWN = """## What is known, and what is a guess

**Known.** The paper prints neither the share that is pruned on CIFAR-10, SVHN and Mendeley nor the epoch at which
pruning starts. Every entry of its tables looks like one run; there are no seeds and no error bars. On Mendeley, |S95|
and error are the same number (22.27), so one of the two is probably a misprint. In three of its tables another method
has a lower ECE than its own. Readings of the pruning that save the printed 40 % of the training time leave 3 to 28 % of
the samples, and all of them end with about twice the printed error on ResNet-50.

**Guesses.** The printed CIFAR-10 row of ResNet-50 comes from a run in which hardly any sample left: FLSD+H without
pruning agrees with four of its five numbers. The DCA rows had too large a weight. The MMCE rows are NLL in effect,
because public code divides the term by the number of pairs twice. [Row by row](paper-tables.md#beside-the-paper).

**What we would ask the authors.** Which share of the samples left at a time, from which epoch on, and how many were
left at the end? Is a sample that left gone for good, or scored again? Are the least confident chosen in the data set or
in each minibatch? Is the last epoch reported or the best one? How many seeds are behind a row? How was the training
time measured? What were the weights of DCA, MMCE and MDCA, and the gamma of the focal loss, in each table?
"""


def paper_page(folder: str | Path) -> str:
    """Return the page as Markdown."""
    groups = group_records(read_records(folder))
    parts = [
        _HEAD,
        _verdicts(groups),
        f"## Which reading comes nearest\n\n{_nearest(groups)}\n\n{BESIDE}\n\n{readings_table(groups)}",
        f"## How many printed numbers agree\n\n{agreement_counts(groups)}",
        _KNOWN,
        f"## What was not run\n\n{not_run(groups)}",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _verdicts(groups: Groups) -> str:
    rows = []
    for claim in CLAIMS:
        found = comparisons(claim, groups)
        decided = verdict(found)
        link = f"[{counted(len(found), 'comparison')}]({TABLES}#{_anchor(f'{claim.title}: {decided}')})"
        rows.append((claim.question, f"**{_WORDS[decided]}**", _in_words(claim, found), link))
    there, missing = covered(groups)
    five = f"Run on {', '.join(there) or 'none'}."
    if missing:
        five += f" Not run: {', '.join(missing)}."
    undecided = f"**{_WORDS['cannot tell']}**"
    rows.append(("Does all this hold on five data sets?", undecided, five, f"[tables]({TABLES}#beside-the-paper)"))
    time = "Our readings were chosen to fit the printed times, so they are no evidence."
    rows.append(("Does pruning save 40 % of the training time?", undecided, time, f"[table]({TABLES}#time-saved)"))
    return Table("", rows, ("the paper's claim", "verdict", "what our runs say", "tables")).markdown()


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MkDocs make it."""
    kept = [letter for letter in heading.lower() if letter.isalnum() or letter in " -_"]
    return "".join(kept).replace(" ", "-")


def _in_words(claim: Claim, found: Sequence[Comparison]) -> str:
    """Return the comparison that decides, as a sentence."""
    if not found:
        return "Not run."
    deciding = [test for test in found if not test.variant] or list(found)
    order: tuple[Verdict, ...] = ("fails", "cannot tell", "holds")
    # The clearest of those that decide: the largest difference beside its interval.
    first = min(deciding, key=lambda test: (order.index(test.verdict), -abs(test.difference) / (test.half or 1.0)))
    data, model = first.place
    sentence = (
        f"{data}, {model}: {metric_label(claim.metric)} is {100 * first.ours:.2f} % with {claim.ours}, "
        f"{100 * first.theirs:.2f} % with {first.other.partition(' (')[0]}"
    )
    if first.half is not None:
        sentence += f" (difference {100 * first.difference:+.2f} ± {100 * first.half:.2f})"
    if first.verdict == "cannot tell":
        sentence += "; within chance"
    if len(deciding) > 1:
        words = [test.verdict for test in deciding]
        sentence += f". {len(words)} comparisons: {words.count('holds')} for it, {words.count('fails')} against it"
    return sentence + "."


def _nearest(groups: Groups) -> str:
    nearest = nearest_readings(groups)
    if not nearest:
        return "No reading was run yet."
    names = {"resnet32": "ResNet-32", "resnet50": "ResNet-50"}
    sentences = [
        f"With {names[model]} the nearest reading is *{reading}* (distance {distance:.2f})."
        for model, (reading, distance) in nearest.items()
        if model in names
    ]
    if "overall" in nearest:
        reading, distance = nearest["overall"]
        sentences.append(f"**Over both networks it is *{reading}*, with a mean distance of {distance:.2f}.**")
    for model, distance in distances_without_pruning(groups).items():
        if model in nearest and distance < nearest[model][1]:
            sentences.append(f"FLSD+H without pruning is nearer still with {names[model]} (distance {distance:.2f}).")
    return " ".join(sentences)
