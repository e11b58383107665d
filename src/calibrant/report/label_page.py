"""A page on several labels per case."""

from pathlib import Path

from calibrant.decisions.multilabel import LabelCases, MultiLabel, evaluate_labels
from calibrant.report.page import write_report
from calibrant.report.sections import Section
from calibrant.tables import Table


def write_label_report(rules: MultiLabel, cases: LabelCases, path: str | Path) -> Path:
    """Write a page: what is promised for each label, whether it holds on these cases, and the calibration of each.

    Args:
        rules: What was chosen, on other cases.
        cases: Labelled cases of each label.
        path: The `.html` file.
    """
    rows: list[tuple[object, ...]] = []
    for label, result in rules.check(cases).items():
        verdict = "nothing is promised"
        if label not in rules.left_out:
            verdict = "held"
            if not all(result["held"].values()):
                verdict = "BROKEN"
        missed, flagged = (f"{result[name]:,}" for name in ("missed", "flagged"))
        counts = f"{missed} of {result['positives']:,}", f"{flagged} of {result['negatives']:,}"
        rows.append((label, *counts, f"{result['reviewed']:,}", verdict))
    headings = ("label", "positive cases missed", "negative cases flagged", "for a person", "promise")
    here = Table("", rows, headings, "Labelled cases that the rules were not chosen on.")
    sections = [
        Section("Promises", rules.table(), leads=True),
        Section("On these cases", here, leads=True),
        Section("Metrics of each label", evaluate_labels(cases)),
    ]
    shown = {label: cases[label] for label in rules.labels}
    return write_report(shown, path, title="Several labels per case", sections=sections)
