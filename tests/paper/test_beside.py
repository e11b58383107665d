import statistics

import pytest

from calibrant.studies import read_records, write_record
from paper.beside import PLANNED, curve
from paper.numbers import paper_rows
from paper.paper_page import paper_page
from paper.runs import group_records, in_words
from paper.tables_page import tables_page


def test_without_results_the_pages_say_plainly_what_was_not_run(tmp_path):
    text = tables_page(tmp_path)
    for data, model, names, _ in PLANNED:
        assert any(line.startswith(f"| {in_words((data, model))} ") and names[-1] in line for line in text.splitlines())
    for section in ("## Beside the paper", "### Time follows samples", "## One setting at a time"):
        assert f"{section}\n" in text
    page = paper_page(tmp_path)
    assert "No reading was run yet." in page
    assert "None of the paper's rows was run yet." in page


@pytest.fixture
def folder(make_record, tmp_path):
    saved = {"seen_share": 0.55, "samples_seen": 550, "train_seconds": 58.0}
    records = [make_record(seed=seed, sharpness=2.0) for seed in (0, 1, 2)]
    records += [make_record("flsd+h", sharpness=1.0), make_record("flsd", sharpness=2.0)]
    records += [make_record("flsd+h+unbiased", seed=seed, sharpness=1.0, **saved) for seed in (0, 1, 2)]
    records += [make_record("flsd+h+p-ema", options={"huber_weight": value}) for value in (0.5, 5.0, 50.0)]
    for record in records:
        write_record(record, tmp_path)
    return tmp_path


def test_numbers_stand_beside_the_papers_with_a_verdict_and_a_reason(folder):
    lines = tables_page(folder).splitlines()
    row = next(row for row in paper_rows() if (row.data, row.model, row.method) == ("cifar10", "resnet32", "flsd"))
    (numbers,) = [line for line in lines if line.startswith("| FLSD (flsd) | 1 |")]
    assert numbers.split("|")[3].strip().startswith(f"**{row.ece:g} → ")
    (why,) = [line for line in lines if line.startswith("- **FLSD (flsd)** (")]
    assert why.endswith("Not explained yet.")
    (folder / "reasons.toml").write_text('["cifar10/resnet32/flsd"]\nece = "Drawn at random for a test."\n')
    reasons = [line for line in tables_page(folder).splitlines() if line.startswith("- **FLSD (flsd)** (")]
    assert "- **FLSD (flsd)** (ECE). Drawn at random for a test." in reasons
    assert len(reasons) == 2


def test_a_run_at_published_settings_stands_beside_the_paper_too(make_record, folder):
    write_record(make_record("mmce", options={"mmce_weight": 2.0}), folder)
    lines = [line for line in tables_page(folder).splitlines() if "(mmce" in line]
    assert [line.split(" | ")[0] for line in lines if line.startswith("| MMCE")] == ["| MMCE (mmce, mmce_weight 2)"]
    write_record(make_record("mmce"), folder)
    lines = [line for line in tables_page(folder).splitlines() if line.startswith("| MMCE")]
    assert [line.split(" | ")[0] for line in lines] == ["| MMCE (mmce)", "| MMCE (mmce, mmce_weight 2)"]


def test_each_of_the_papers_numbers_counts_once_by_the_recommended_settings(make_record, tmp_path):
    write_record(make_record("mmce", options={"mmce_weight": 2.0}, sharpness=0.1), tmp_path)
    (before,) = [line for line in tables_page(tmp_path).splitlines() if line.startswith("Paper → ours")]
    assert before == "Paper → ours; bold: they do not agree. 0 of 5 numbers agree."
    write_record(make_record("mmce", sharpness=1.5), tmp_path)
    text = tables_page(tmp_path)
    (row,) = [line for line in text.splitlines() if line.startswith("| MMCE (mmce) |")]
    assert f" {row.count(' → ') - row.count('**') // 2} of 5 numbers agree." in text


def test_one_setting_at_a_time_needs_runs_in_which_nothing_else_changed(folder, make_record):
    text = tables_page(folder)
    assert "### CIFAR-10, ResNet-32: lambda of flsd+h+p-ema" in text
    assert "| CIFAR-10, ResNet-32 | flsd+h+p-ema, lambda: 0.1, 1, 10, 25 | 4 |" in tables_page(folder)
    mixed = make_record("flsd+h+p-ema", options={"huber_weight": 1.0, "fraction": 0.1})
    assert curve("lambda", "flsd+h+p-ema", group_records([mixed])["cifar10", "resnet32"]) == {}


def test_missing_seeds_are_named_with_their_cost(folder, make_record):
    (line,) = [line for line in tables_page(folder).splitlines() if "flsd+h (2 more of 3 seeds)" in line]
    data, names, runs, minutes = (cell.strip() for cell in line.strip("|").split("|"))
    assert data == "CIFAR-10, ResNet-32"
    assert "nll" not in names
    assert "flsd+h+unbiased" not in names
    # Records of 1,000 updates in 100 seconds or less; a run has 160 epochs of 45,000 images.
    paces = [record.train_seconds / record.samples_seen for record in read_records(folder)]
    expected = int(runs) * statistics.median(paces) * 160 * 45_000 / 60
    assert float(minutes) == pytest.approx(expected, abs=0.5)


def test_every_reading_stands_beside_the_printed_row_nearest_first(make_record, tmp_path):
    row = next(r for r in paper_rows() if (r.data, r.model, r.method) == ("cifar10", "resnet32", "flsd+h+p-ema"))
    records = [make_record("flsd+h+p-ema", seed=seed, sharpness=1.0) for seed in (0, 1)]
    records.append(make_record("flsd+h+p-ema", options={"within": "batch"}, sharpness=3.0))
    records.append(make_record("flsd+h", sharpness=0.3))
    for record in records:
        write_record(record, tmp_path)
    lines = tables_page(tmp_path).splitlines()
    table = [line.strip("|").split(" | ") for line in lines if line.startswith("| ResNet-32 |")]
    assert float(table[0][5]) == row.test_error
    assert [float(cells[-1]) for cells in table[1:]] == sorted(float(cells[-1]) for cells in table[1:])
    (cells,) = [cells for cells in table if "in each minibatch" in cells[1]]
    printed = (row.test_error, row.ece, row.share_confident)
    names = ("test_error", "ece", "share@0.95")
    expected = sum(abs(100 * records[2].value(name) - value) for name, value in zip(names, printed, strict=True)) / 3
    assert float(cells[-1]) == pytest.approx(expected, abs=0.006)


def test_readings_that_nobody_ran_are_named(make_record, tmp_path):
    def missing():
        lines = tables_page(tmp_path).splitlines()
        return next(line for line in lines if line.startswith("| CIFAR-10, ResNet-50 | readings"))

    assert "chosen anew from all samples" in missing()
    options = {"readmit": True, "scoring": "resting"}
    write_record(make_record("flsd+h+p-ema", model="resnet50", options=options), tmp_path)
    assert "chosen anew from all samples" not in missing()
