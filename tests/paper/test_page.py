import importlib.util
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from calibrant.report import save_figure
from calibrant.studies import write_record
from paper.findings import ECE, NLL, all_plans, findings, unfair
from paper.results_page import readme_findings, results_page, sentences
from paper.runs import group_records

ROOT = Path(__file__).resolve().parents[2]
PLACE = ("cifar10", "resnet32")


def script(name="results"):
    spec = importlib.util.spec_from_file_location(f"make_{name}", ROOT / "docs" / "make" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_files_are_what_results_give():
    for path, text in script().written().items():
        assert path.read_text() == text, "run: python docs/make/results.py"


def test_the_committed_list_of_candidates_is_what_the_records_give():
    assert (ROOT / "results" / "search" / "README.md").read_text() == script("search").page()


@pytest.mark.parametrize("name", ["results", "paper"])
def test_the_committed_pictures_are_what_results_give(tmp_path, name):
    if f"matplotlib=={version('matplotlib')}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("the pictures were drawn by the matplotlib of constraints.txt, and another writes other bytes")
    made = script("results_picture")
    svg, _ = save_figure(made.PICTURES[name](), tmp_path / name)
    assert svg.read_bytes() == (ROOT / "docs" / f"{name}.svg").read_bytes(), "run: python docs/make/results_picture.py"


def test_without_results_the_page_says_so(tmp_path):
    assert "Nothing yet" in results_page(tmp_path)
    assert readme_findings(tmp_path) == "\n"


def gained(record, gain):
    """A record whose NLL after a temperature is lower by so much."""
    scaled = record.test_scaled["10"]
    scaled = replace(scaled, metrics={**scaled.metrics, "nll": scaled.nll - gain})
    return record.model_copy(update={"test_scaled": {**record.test_scaled, "10": scaled}})


@pytest.fixture
def runs(make_record):
    """The paper's recipe, the default, a plan and its control; the Huber term and the pruning beside theirs."""
    averaged = {"kind": "cosine", "average": 0.25}

    def make(gain=0.0):
        def stretched(method, seed, *, epochs=160, **fields):
            record = make_record(method, seed=seed, **fields)
            schedule = {**record.recipe["schedule"], **averaged}
            recipe = {**record.recipe, "schedule": schedule, "epochs": epochs}
            changes = {**record.changes, "schedule.average": 0.25, "schedule.kind": "cosine"}
            changes |= {"epochs": epochs} if epochs != 160 else {}
            return record.model_copy(update={"recipe": recipe, "changes": changes})

        saved = {"samples_seen": 600, "seen_share": 0.6}
        made = []
        for seed in (0, 1, 2):
            made += [make_record(seed=seed, sharpness=2.0), stretched("nll", seed, sharpness=1.0)]
            made.append(stretched("nll", seed, sharpness=1.5, epochs=96, samples_seen=600, samples_full=600))
            made.append(gained(stretched("nll+unbiased", seed, sharpness=1.5, **saved), gain + 0.001 * seed))
            made += [make_record("flsd", seed=seed, sharpness=2.0), make_record("flsd+h", seed=seed, sharpness=1.0)]
        return made

    return make


def test_each_row_has_a_control_of_equal_cost(runs):
    groups = group_records(runs())
    rows = findings(groups)
    assert [row.kind for row in rows] == ["default", "plan", "huber"]
    for row in rows:
        ours, control = row.cost
        assert ours <= 1.1 * control
        assert [record.seed for record in row.ours] == [record.seed for record in row.control] == [0, 1, 2]
    default, plan, huber = rows
    assert default.control[0].label == "nll"
    assert plan.control[0].recipe["epochs"] == 96
    assert (huber.ours[0].method, huber.control[0].method) == ("flsd+h", "flsd")
    assert huber.verdict(ECE) == "better"


def test_a_default_that_saw_more_than_its_control_has_no_row_but_is_named(runs):
    groups = group_records(runs())
    (longer,) = [label for label in groups[PLACE] if label.startswith("nll (") and "96" not in label]
    groups[PLACE][longer] = [each.model_copy(update={"samples_seen": 3000}) for each in groups[PLACE][longer]]
    assert "default" not in [row.kind for row in findings(groups)]
    (named,) = unfair(groups)
    assert named.where == "CIFAR-10, ResNet-32"


@pytest.mark.parametrize(
    ("gain", "verdict", "words"),
    [
        (1.0, "better", "**Every pruning plan beat shorter training.**"),
        (-1.0, "worse", "0 of 1 plans were better than their control, 1 worse, 0 inconclusive"),
        (0.0, "inconclusive", "Pruning did not beat shorter training"),
    ],
)
def test_sentences_follow_the_verdicts_and_name_the_control(runs, gain, verdict, words):
    groups = group_records(runs(gain))
    (plan,) = all_plans(groups)
    assert plan.verdict(NLL) == verdict
    lines = sentences(findings(groups), [plan])
    (headline,) = [line for line in lines if words in line]
    assert "A control trains on all data for fewer epochs, with the same loss and schedule." in headline
    assert f"({verdict})" in lines[lines.index(headline) + 1]


def test_the_readme_has_a_row_for_each_kind_and_counts_all_plans(runs, tmp_path):
    records = runs(1.0)
    for record in records:
        write_record(record, tmp_path)
    header, _, *rows = readme_findings(tmp_path).strip().splitlines()
    assert header.count("|") == 6
    assert [row.split(" | ")[0].removeprefix("| ").split(",")[0] for row in rows] == [
        "the default",
        "pruning",
        "the paper's loss",
    ]
    plans = [record.value("scaled_nll") for record in records if record.method == "nll+unbiased"]
    controls = [record.value("scaled_nll") for record in records if record.changes.get("epochs") == 96]
    assert f"| NLL {sum(plans) / 3:.3f}, error" in rows[1]
    assert f"| NLL {sum(controls) / 3:.3f}, error" in rows[1]
    assert rows[1].endswith("| 1 better |")


def test_numbers_of_the_page_are_those_of_the_records(runs, tmp_path):
    records = runs()
    for record in records:
        write_record(record, tmp_path)
    text = results_page(tmp_path)
    (row,) = re.findall(r"^\| the paper's loss.*$", text, re.MULTILINE)
    for method in ("flsd+h", "flsd"):
        eces = [record.value("ece") for record in records if record.method == method]
        assert f"{100 * sum(eces) / 3:.2f}" in row
    assert text == results_page(tmp_path)
    assert "\n\n| method, against its control |" in text  # without the empty line it would be no table
    assert "Settings of `nll+unbiased, averaged` on CIFAR-10" in text


def test_no_more_than_fourteen_rows(runs):
    groups = group_records(runs())
    for data in ("cifar100", "svhn", "mendeley-v2", "fashion-mnist"):
        groups[data, "resnet32"] = groups[PLACE]
    groups["cifar10", "resnet50"] = groups[PLACE]
    rows = findings(groups)
    assert len(rows) <= 14
    assert len({row.place for row in rows if row.kind == "plan"}) == 2


def resized(record, *, epochs):
    """The run with 60 % of its epochs at 24 of 32 pixels, which cost 9 / 16 as much."""
    recipe = {**record.recipe, "epochs": epochs}
    recipe["schedule"] = {**recipe["schedule"], "resolution": [[24, 0.6]]}
    share = 0.6 * 9 / 16 + 0.4
    samples = 1000 * epochs // 160
    changes = {**record.changes, "schedule.resolution": [[24, 0.6]], "epochs": epochs, "optimiser.nesterov": True}
    costs = {"samples_seen": samples, "samples_full": samples, "flops": share * samples, "flops_full": float(samples)}
    return record.model_copy(update={"recipe": recipe, "changes": changes, **costs})


def test_smaller_images_first_stand_beside_fewer_epochs_at_equal_compute(runs):
    records = runs()
    whole = [record for record in records if record.label == "nll (average 0.25, kind cosine)"]
    plans = [gained(resized(record, epochs=130), 0.05 + 0.001 * record.seed) for record in whole]
    groups = group_records([*records, *plans])
    first = findings(groups)[0]
    assert first.kind == "resolution"
    assert [record.recipe["epochs"] for record in first.control] == [96, 96, 96]
    assert first.cost[0] == pytest.approx(first.cost[1], rel=0.01)
    assert [record.label for record in first.whole] == [whole[0].label] * 3
    headline, line = sentences(findings(groups), all_plans(groups))[:2]
    assert headline.startswith("- **Smaller images early in the training")
    assert "60 % of the compute" in line
