"""`docs/paper-tables.md`, written from `results/` alone: every claim of the paper with the runs that test it."""

from collections.abc import Sequence
from pathlib import Path

from calibrant.studies import read_records
from calibrant.studies.result_tables import metric_label, percent
from calibrant.studies.study_results import estimate
from calibrant.tables import Table
from paper.beside import agreement_counts, beside_paper, curves, load_reasons, not_run
from paper.claims import CLAIMS, OURS, RULE, WITHOUT, Claim, Comparison, comparisons, covered, exceptions, verdict
from paper.readings import BESIDE, INTRO, READINGS_IN_WORDS, readings_table, updates_table
from paper.runs import Groups, group_records, in_words
from paper.timing import timing_table

# Updates of two plans may differ by this share: epochs are whole.
_TOLERANCE = 0.015
_FIGURES = ("test_error", "ece", "share@0.95", "ece@0.95", "auroc")
_HEAD = """<!-- Written by docs/make/paper.py from results/*.json. Change those, not this. -->
# The paper's claims, table by table

[The verdicts on one page](paper.md). This page has the runs behind them: every comparison for each claim, what each
reading of the pruning saves, and the paper's numbers next to ours. "Recommended" means pruning from the first drop of
the learning rate; other settings are named.
"""

_BY_READING = (
    "A cell counts the comparisons that support the claim / contradict it / are inconclusive. The other readings were "
    "run on CIFAR-10 only."
)
_MENDELEY = """## Mendeley V2, as far as it is known

The paper says that it follows DCA, with a ResNet-50 that was trained on ImageNet. The table compares public code of
DCA, of MDCA (by the same group), and our two recipes:

| | DCA's code | MDCA's script | `mendeley-v2-resnet50` | `mendeley-v2-resnet50-mdca` |
|---|---|---|---|---|
| images | 832x832 | not known | 64x64, grey | 64x64, grey |
| ResNet-50 | frozen, a new head of four layers | not known | all trained, one new layer | all trained, one new layer |
| class weights | 0.735 and 0.265 | none | none | none |
| optimiser | Adam 1e-4, decay 1e-3, batch 64 | Adam 1e-4, decay 5e-4, batch 8 | as DCA | as MDCA |
| epochs, rate | 100, times 0.985 each | 20, a tenth from epoch 10 on | as DCA | as MDCA |
| augmentation | mirror, turns by 90 degrees | not known | mirror | mirror |

So our runs test the method on these X-rays, but say little about the paper's numbers for them.
`mendeley-v2?size=128` decodes larger images. For a frozen network with another head, pass a network of your own
(`module:factory`).
"""


def tables_page(folder: str | Path) -> str:
    """Return the page as Markdown."""
    groups = group_records(read_records(folder))
    parts = [_HEAD, RULE + "\n"]
    parts += [_section(claim, comparisons(claim, groups)) for claim in CLAIMS]
    parts += [
        _controls(groups),
        _five(groups),
        _MENDELEY,
        f"## Time saved\n\n{INTRO}\n\n{updates_table(groups)}",
        timing_table(groups, heading="### Time follows samples"),
        f"## Readings of the pruning\n\n{BESIDE}\n\n{readings_table(groups)}",
        f"## Claims under each reading\n\n{_BY_READING}\n\n{_by_reading(groups)}",
        f"## Numbers that agree\n\n{agreement_counts(groups)}",
        beside_paper(groups, load_reasons(Path(folder) / "reasons.toml")),
        curves(groups),
        f"## What was not run\n\n{not_run(groups)}",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _section(claim: Claim, found: Sequence[Comparison]) -> str:
    parts = [f"## {claim.title}", "", f"Verdict: **{verdict(found)}**. {claim.says}"]
    contradicting = exceptions(claim)
    if contradicting is not None:
        words = "support the claim in every table."
        if contradicting:
            words = f"contradict the claim for {'; '.join(contradicting)}."
        parts += ["", f"The paper's own numbers {words}"]
    if found:
        head = f"{metric_label(claim.metric)} of {claim.ours}, %"
        heads = ("data, network", "settings", "against", "seeds", head, "of the other, %", "difference", "outcome")
        parts += ["", Table("", [_line(test) for test in found], heads).markdown().strip("\n")]
    else:
        parts += ["", f"Not run. What would tell: {claim.missing}."]
    return "\n".join(parts)


def _line(test: Comparison) -> tuple[str, ...]:
    difference = f"{100 * test.difference:+.2f}"
    if test.half is not None:
        difference += f" ± {100 * test.half:.2f}"
    return (
        in_words(test.place),
        test.variant or "recommended",
        test.other,
        f"{test.seeds[0]} and {test.seeds[1]}",
        f"{100 * test.ours:.2f}",
        f"{100 * test.theirs:.2f}",
        difference,
        test.outcome,
    )


def _controls(groups: Groups) -> str:
    """Compare the paper's plan with other ways to spend as many updates."""
    rows = []
    for place, by_label in groups.items():
        ours = by_label.get(OURS)
        for label, records in by_label.items() if ours else ():
            loss = records[0].method.startswith(f"{WITHOUT}+") or records[0].method == WITHOUT
            if ours and loss and abs(records[0].samples_seen / ours[0].samples_seen - 1) < _TOLERANCE:
                figures = (percent(estimate([record.value(name) for record in records])) for name in _FIGURES)
                rows.append((in_words(place), label, str(len(records)), *figures))
    heads = ("data, network", "method", "seeds", *(metric_label(name) for name in _FIGURES))
    text = (
        "A plan that saves updates must be compared with other ways to save as many: leaving out random samples, or "
        "removing the most confident ones, with the same loss. In percent, ± over seeds."
    )
    return f"## At as many updates\n\n{text}\n\n{Table('', rows, heads).markdown()}"


def _five(groups: Groups) -> str:
    there, missing = covered(groups)
    shown = "The paper shows CIFAR-10, CIFAR-100, SVHN, Mendeley V2 and Tiny-ImageNet."
    lines = [f"{shown} Run by us at recommended settings: {in_words(there) or 'none'}."]
    lines += [f"Not run: {in_words(missing)}. We say nothing about these."] if missing else []
    return "## On five data sets\n\n" + " ".join(lines)


def _by_reading(groups: Groups) -> str:
    """Return a table of the claims about pruning, with the counts of outcomes under each reading."""
    readings = list(dict.fromkeys(READINGS_IN_WORDS.values()))
    rows = []
    for claim in CLAIMS:
        if claim.ours != OURS or claim.as_run:
            continue
        found = comparisons(claim, groups)
        cells = []
        for reading in readings:
            outcomes = [test.outcome for test in found if READINGS_IN_WORDS.get(test.variant) == reading]
            counts = [str(outcomes.count(outcome)) for outcome in ("supports", "contradicts", "inconclusive")]
            cells.append(" / ".join(counts) if outcomes else "-")
        if any(cell != "-" for cell in cells[1:]):
            rows.append((claim.statement, *cells))
    if not rows:
        return "No other reading was run yet."
    return Table("", rows, ("claim", *readings)).markdown()
