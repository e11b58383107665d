"""`docs/paper.md`, written from `results/` alone: the paper's claims with the runs that test them."""

from collections.abc import Sequence
from pathlib import Path

from calibrant.studies import read_records
from calibrant.studies.result_tables import metric_label, percent
from calibrant.studies.study_results import estimate
from calibrant.tables import Table
from paper.agreement import load_reasons
from paper.beside import beside_paper, curves, not_run
from paper.claims import (
    CLAIMS,
    OURS,
    RULE,
    WITHOUT,
    Claim,
    Comparison,
    Groups,
    Verdict,
    comparisons,
    covered,
    exceptions,
    verdict,
)
from paper.groups import group_records
from paper.readings import INTRO, readings_beside, updates_table
from paper.timing import timing_table

# Updates of two plans may differ by this share: epochs are whole.
_TOLERANCE = 0.015
_FIGURES = ("test_error", "ece", "share@0.95", "ece@0.95", "auroc")
_HEAD = """<!-- Written by docs/make/paper.py from results/*.json. Change those, not this. -->
# The paper's claims, one by one

Patra, Hebbalaguppe, Dash, Shroff, Vig: *Calibrating Deep Neural Networks using Explicit Regularisation and Dynamic Data
Pruning*, WACV 2023. Here its claims are put to our runs; [further down](#beside-the-paper) are its numbers beside ours.
The paper prints neither the share that is pruned on CIFAR-10, SVHN and Mendeley nor the epoch at which pruning starts,
so its method is tested in readings: "recommended" is pruning from the first drop of the learning rate, and other
settings are named. [One table](#every-reading-beside-the-printed-row) puts the readings beside the row that the paper
prints, [another](#time-saved) says what each of them saves. No code of the authors is public. Where a claim fails, it
fails for these readings, on the data sets and networks that are named.
"""


_MENDELEY = """## Mendeley V2, as far as it is known

The paper says that it follows DCA, with a ResNet-50 that was trained on ImageNet. What public code of DCA and of the
same group's MDCA does, and what our recipes do:

| | DCA's code | MDCA's script | `mendeley-v2-resnet50` | `mendeley-v2-resnet50-mdca` |
|---|---|---|---|---|
| images | 832x832 | not known | 64x64, grey | 64x64, grey |
| ResNet-50 | frozen, a new head of four layers | not known | all trained, one new layer | all trained, one new layer |
| class weights | 0.735 and 0.265 | none | none | none |
| optimiser | Adam 1e-4, decay 1e-3, batch 64 | Adam 1e-4, decay 5e-4, batch 8 | as DCA | as MDCA |
| epochs, rate | 100, times 0.985 each | 20, a tenth from epoch 10 on | as DCA | as MDCA |
| augmentation | mirror, turns by 90 degrees | not known | mirror | mirror |

So our runs say something about the method on these X-rays, and little about the paper's numbers for them.
`mendeley-v2?size=128` decodes larger images; a frozen network with another head is one of your own (`module:factory`).
"""


def claims_page(folder: str | Path) -> str:
    """The page as Markdown."""
    groups = group_records(read_records(folder))
    found = {claim.title: comparisons(claim, groups) for claim in CLAIMS}
    parts = [_HEAD, _overview(found, groups), RULE + "\n"]
    parts += [_section(claim, found[claim.title]) for claim in CLAIMS]
    parts += [_controls(groups), _five(groups), _MENDELEY, f"## Time saved\n\n{INTRO}\n\n{updates_table(groups)}"]
    parts += [timing_table(groups, heading="### Time follows samples"), readings_beside(groups)]
    parts += [beside_paper(groups, load_reasons(Path(folder) / "reasons.toml")), curves(groups), not_run(groups)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _overview(found: dict[str, list[Comparison]], groups: Groups) -> str:
    rows: list[tuple[str, str, str]] = [
        (claim.title, verdict(found[claim.title]), _in_words(claim, found[claim.title])) for claim in CLAIMS
    ]
    there, missing = covered(groups)
    rows.append(("On five data sets", "cannot tell" if missing else "see above", f"run on {len(there)} of the five"))
    rows.append(("Time saved", "cannot tell", "our readings were chosen to fit the printed times: see below"))
    return Table("", rows, ("claim", "verdict", "what our runs say")).markdown()


def _in_words(claim: Claim, found: Sequence[Comparison]) -> str:
    """The comparison that decides, as a sentence."""
    if not found:
        return "not run"
    counted = [each for each in found if not each.variant] or list(found)
    order: tuple[Verdict, ...] = ("fails", "cannot tell", "holds")
    # The clearest of those that decide: the largest difference beside its interval.
    first = min(counted, key=lambda each: (order.index(each.verdict), -abs(each.difference) / (each.half or 1.0)))
    went = "is" if round(first.ours, 4) == round(first.theirs, 4) else "rose" if first.ours > first.theirs else "fell"
    data, model = first.place
    setting = f" ({first.variant})" if first.variant else ""
    return (
        f"{data}, {model}: {metric_label(claim.metric)} {went} from {100 * first.theirs:.2f} ({first.other}) to "
        f"{100 * first.ours:.2f} % ({claim.ours}{setting})"
    )


def _section(claim: Claim, found: Sequence[Comparison]) -> str:
    parts = [f"## {claim.title}: {verdict(found)}", "", claim.says]
    own = exceptions(claim)
    if own is not None:
        told = f"contradict it for {'; '.join(own)}." if own else "agree with it in every table."
        parts += ["", f"The paper's own numbers {told}"]
    if found:
        head = f"{metric_label(claim.metric)} of {claim.ours}, %"
        heads = ("data, network", "settings", "against", "seeds", head, "of the other, %", "difference", "verdict")
        parts += ["", Table("", [_line(each) for each in found], heads).markdown().strip("\n")]
    else:
        parts += ["", f"Not run. What would tell: {claim.missing}."]
    return "\n".join(parts)


def _line(each: Comparison) -> tuple[str, ...]:
    spread = "" if each.half is None else f" ± {100 * each.half:.2f}"
    return (
        ", ".join(each.place),
        each.variant or "recommended",
        each.other,
        str(each.seeds),
        f"{100 * each.ours:.2f}",
        f"{100 * each.theirs:.2f}",
        f"{100 * each.difference:+.2f}{spread}",
        each.verdict,
    )


def _controls(groups: Groups) -> str:
    """The paper's plan beside other ways to spend as many updates: what is lost to the plan, and what to its saving."""
    rows = []
    for (data, model), by_label in groups.items():
        ours = by_label.get(OURS)
        for label, records in by_label.items() if ours else ():
            loss = records[0].method.startswith(f"{WITHOUT}+") or records[0].method == WITHOUT
            if ours and loss and abs(records[0].samples_seen / ours[0].samples_seen - 1) < _TOLERANCE:
                figures = (percent(estimate([record.value(name) for record in records])) for name in _FIGURES)
                rows.append((f"{data}, {model}", label, str(len(records)), *figures))
    heads = ("data, network", "method", "seeds", *(metric_label(name) for name in _FIGURES))
    text = (
        "A plan that saves updates must be compared with other ways to save as many: resting a random part, or "
        "removing the most confident samples, with the same loss. In percent, ± over seeds."
    )
    return f"## At as many updates\n\n{text}\n\n{Table('', rows, heads).markdown()}"


def _five(groups: Groups) -> str:
    there, missing = covered(groups)
    shown = "The paper shows CIFAR-10, CIFAR-100, SVHN, Mendeley V2 and Tiny-ImageNet."
    lines = [f"{shown} Run by us at recommended settings: {_list(there)}."]
    lines += [f"Not run: {_list(missing)}. So nothing is said about these."] if missing else []
    return f"## On five data sets: {'cannot tell' if missing else 'run on all'}\n\n" + " ".join(lines)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
