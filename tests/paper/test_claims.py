import re
import statistics

import pytest
from scipy import stats

from calibrant.studies.referee import SeedPool, spread_of
from paper.claims import CLAIMS, Claim, comparisons, covered, exceptions, verdict
from paper.paper_page import paper_page
from paper.readings import READINGS, saved
from paper.runs import group_records
from paper.tables_page import tables_page
from tests.paper.test_page import script

BY_TITLE = {claim.title: claim for claim in CLAIMS}
PLACE = ("cifar10", "resnet32")
EARLY = {"fraction": 0.1, "start": 40}


def test_the_committed_pages_are_what_results_give():
    for path, text in script("paper").written().items():
        assert path.read_text() == text, "run: python docs/make/paper.py"


def test_without_runs_nothing_is_claimed(tmp_path):
    text = tables_page(tmp_path)
    for claim in CLAIMS:
        assert f"## {claim.title}\n\nVerdict: **undecided**" in text
    assert "Run by us at recommended settings: none." in text
    assert "supports |" not in text
    assert "contradicts |" not in text
    assert re.search(r"Of (\d+) claims: 0 not reproduced, \1 undecided, 0 reproduced", paper_page(tmp_path))


def test_every_verdict_links_to_its_table():
    pages = {path.name: text for path, text in script("paper").written().items()}
    anchors = re.findall(r"\(paper-tables\.md#([^)]+)\)", pages["paper.md"])
    headings = re.findall(r"^#+ (.*)$", pages["paper-tables.md"], re.MULTILINE)
    known = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert len(anchors) > len(CLAIMS)
    assert set(anchors) <= known


def figures(make_record, method, values, metric="test_error", width=0.001, **options):
    """Records with these values of a metric, one a seed, and a standard error over images."""
    made = []
    for seed, value in enumerate(values):
        record = make_record(method, seed=seed, options=options or None)
        content = record.to_dict()
        content["test"]["10"][metric] = value
        content["test"]["10"]["intervals"][metric] = [value - 1.96 * width, value + 1.96 * width]
        made.append(type(record).model_validate(content))
    return made


def only(claim, *groups):
    (found,) = comparisons(claim, group_records([record for group in groups for record in group]))
    return found


LOWER = Claim("", "", "", "test_error", "flsd+h+p-ema", ("flsd+h",))
KEPT = Claim("", "", "", "test_error", "flsd+h+p-ema", ("flsd+h",), kept=True)


def test_seeds_are_two_samples(make_record):
    values = [0.080, 0.081, 0.085], [0.070, 0.072]
    ours = figures(make_record, "flsd+h+p-ema", values[0])
    theirs = figures(make_record, "flsd+h", values[1])
    found = only(LOWER, ours, theirs)
    spread = spread_of(SeedPool(values), *values, 0.0)
    assert spread is not None
    assert (found.place, found.seeds, found.variant) == (PLACE, (3, 2), "")
    assert found.difference == pytest.approx(statistics.fmean(values[0]) - statistics.fmean(values[1]))
    assert found.half == pytest.approx(spread.half_width())
    assert found.outcome == "contradicts"
    assert only(KEPT, ours, theirs).outcome == "contradicts"


def test_one_run_each_varies_by_images_or_as_other_methods_do(make_record):
    ours = figures(make_record, "flsd+h+p-ema", [0.070])
    theirs = figures(make_record, "flsd+h", [0.080])
    found = only(LOWER, ours, theirs)
    assert found.half == pytest.approx(1.96 * (2 * 0.001**2) ** 0.5, rel=1e-3)
    assert found.outcome == "supports"
    others = figures(make_record, "nll", [0.070, 0.090, 0.110])
    beside = only(LOWER, ours, theirs, others)
    assert beside.half == pytest.approx(stats.t.ppf(0.975, 2) * (2 * 0.02**2) ** 0.5)
    assert beside.outcome == "inconclusive"


@pytest.mark.parametrize(
    ("ours", "expected"),
    [([0.070], "supports"), ([0.0715], "supports"), ([0.0725], "inconclusive"), ([0.08], "contradicts")],
)
def test_accuracy_is_kept_within_half_a_point(make_record, ours, expected):
    theirs = figures(make_record, "flsd+h", [0.070])
    assert only(KEPT, figures(make_record, "flsd+h+p-ema", ours), theirs).outcome == expected


def test_other_settings_are_compared_with_their_like(make_record):
    claim = BY_TITLE["EMA better than none, in error"]
    recommended = figures(make_record, "flsd+h+p-ema", [0.09])
    early = figures(make_record, "flsd+h+p-ema", [0.11], **EARLY)
    last = figures(make_record, "flsd+h+p", [0.10], **EARLY)
    found = only(claim, recommended, early, last)
    assert (found.variant, found.ours, found.theirs) == ("fraction 0.1, start 40", 0.11, 0.10)
    # A method without a plan is the same for all settings of the plan, but not for others.
    without = figures(make_record, "flsd+h", [0.07])
    both = comparisons(LOWER, group_records([*recommended, *early, *without]))
    assert [each.variant for each in both] == ["", "fraction 0.1, start 40"]
    other_weight = figures(make_record, "flsd+h+p-ema", [0.09], huber_weight=1.0)
    assert comparisons(LOWER, group_records([*other_weight, *without])) == []


def test_one_comparison_that_contradicts_is_enough(make_record):
    claim = Claim("", "", "", "test_error", "flsd+h+p-ema", ("nll", "flsd"))
    ours = figures(make_record, "flsd+h+p-ema", [0.07])
    worse, same, better = (
        figures(make_record, name, [value]) for name, value in (("nll", 0.08), ("flsd", 0.0701), ("flsd", 0.06))
    )
    assert verdict(comparisons(claim, group_records([*ours, *worse]))) == "reproduced"
    assert verdict(comparisons(claim, group_records([*ours, *worse, *same]))) == "undecided"
    assert verdict(comparisons(claim, group_records([*ours, *worse, *better]))) == "not reproduced"
    assert verdict([]) == "undecided"


def test_the_papers_own_numbers():
    assert exceptions(BY_TITLE["Best on ECE(S95)"]) == []
    against = exceptions(BY_TITLE["More confident than FLSD and MDCA"])
    assert [each.split(" (")[0] for each in against] == ["CIFAR-10, ResNet-50", "Mendeley V2, ResNet-50"]
    assert exceptions(BY_TITLE["Confident"]) is None, "the paper prints no row without pruning"


def test_which_data_sets_were_run(make_record):
    there, missing = covered(group_records(figures(make_record, "flsd+h+p-ema", [0.1])))
    assert there == ["cifar10"]
    assert missing == ["cifar100", "svhn", "mendeley-v2", "tiny-imagenet"]


def slow(size, epochs, fraction, interval, start, *, anew):
    """Samples of a class that are trained on, one epoch at a time."""
    kept, trained = size, 0
    for epoch in range(1, epochs + 1):
        trained += kept
        if epoch >= start and (epoch - start) % interval == 0:
            base = size if anew else kept
            kept = max(base - int(base * fraction + 1e-9), 1)
    return trained


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading[0]}, {reading[1]}, {reading[2]}")
def test_saved_updates_against_a_slow_loop(reading):
    _, data, model, options = reading
    share, _, settings = saved(data, model, options)
    epochs = {"cifar10": 160, "cifar100": 200}.get(data, 100)
    svhn = [4453, 12474, 9526, 7647, 6712, 6193, 5154, 5035, 4540, 4193]
    sizes = {"cifar10": [4500], "cifar100": [450], "tiny-imagenet": [450], "svhn": svhn, "mendeley-v2": [1206, 3487]}
    numbers = (settings["fraction"], settings["interval"], settings["start"])
    trained = sum(slow(size, epochs, *numbers, anew=options.get("readmit", False)) for size in sizes[data])
    assert share == pytest.approx(1 - trained / (epochs * sum(sizes[data])), abs=1e-9)
