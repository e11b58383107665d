from dataclasses import replace

import pytest

from calibrant.studies import summarise
from calibrant.studies.result_tables import paper_tables


@pytest.fixture
def results(make_record):
    cheap = {"samples_seen": 600, "seen_share": 0.6, "train_seconds": 62.0}
    groups = {
        "nll": [make_record(seed=seed, sharpness=2.0) for seed in (0, 1)],
        "flsd+h": [make_record("flsd+h", seed=seed, sharpness=1.0) for seed in (0, 1)],
        "once": [make_record("flsd+h+unbiased", seed=0, sharpness=1.2, **cheap)],
    }
    return summarise(groups, "nll")


def test_the_papers_two_tables_costs_and_differences(results):
    first, second, third, costs, decisions, differences = paper_tables(results)
    assert first.columns == ("method", "seeds", "ECE", "ECE +TS", "ECE, 15 bins", "TE", "AUROC")
    assert second.columns == ("method", "seeds", "ECE(S95)", "ECE(S95) +TS", "|S95|", "|S95| +TS")
    row = results.rows[0]
    assert first.rows[0][2] == f"{100 * row['ece'].mean:.2f} ± {100 * row['ece'].spread:.2f}"
    assert costs.rows[2][1:6] == ("600", "60.0", "60.0", "62.0", "62")
    assert third.columns[2:4] == ("NLL", "NLL +TS")
    assert third.rows[1][3] == f"{results.rows[1]['scaled_nll'].mean:.4f} ± {results.rows[1]['scaled_nll'].spread:.4f}"
    assert third.rows[0][5].split()[0] == f"{results.rows[0]['brier'].mean:.4f}"
    assert third.rows[0][7].split()[0] == f"{100 * results.rows[0]['aurc'].mean:.2f}"
    assert len(differences.rows) == 2 * 13
    (nll,) = [line for line in differences.rows if line[:2] == ("flsd+h", "NLL")]
    (found,) = [d for d in results.differences if (d.label, d.metric) == ("flsd+h", "nll")]
    assert nll[2:4] == (f"{found.difference:+.4f}", " to ".join(f"{end:+.4f}" for end in found.interval))
    assert {line[-1] for line in differences.rows} <= {"better", "worse", "cannot tell"}
    assert decisions.columns[1] == "NLL +TS minus nll"
    found = results.decisions[0]
    assert decisions.rows[0][0] == "flsd+h"
    assert decisions.rows[0][3:5] == (f"{found.p:.3f}", f"{found.detectable:.4f}")


def test_times_are_compared_only_between_equally_busy_machines(make_record):
    def relative(ours, baseline):
        groups = {
            "nll": [make_record(seed=seed, concurrent_runs=count) for seed, count in enumerate(baseline)],
            "dca": [make_record("dca", train_seconds=50.0, concurrent_runs=count) for count in ours],
        }
        return paper_tables(summarise(groups, "nll"))[3].rows[1][5]

    assert relative([1], [1, 1]) == relative([8], [8, 8]) == relative([None], [None]) == "50"
    assert relative([8], [1, 1]) == relative([8], [8, 9]) == relative([None], [1]) == "-"


def test_the_best_mean_of_a_column_is_marked_in_its_direction(results):
    first, second, *_ = paper_tables(results)
    expected = ((first, 2, "ece", min), (first, 6, "auroc", max), (second, 4, "share@0.95", max))
    for grid, column, metric, pick in expected:
        means = [row[metric].mean for row in results.rows]
        assert grid.best[column] == {means.index(pick(means))}


def test_seeds_that_agree_exactly_are_counted_all_the_same(make_record):
    groups = {
        name: [make_record(name, seed=seed, test=make_record().test) for seed in (0, 1)] for name in ("nll", "flsd")
    }
    differences = paper_tables(summarise(groups, "nll"))[-1]
    assert differences.rows[0] == ("flsd", "ECE", "+0.00", "-", "-", "-", "cannot tell")


def test_words_stand_left_and_numbers_right(results):
    differences = paper_tables(results)[-1]
    assert [differences.is_text(column) for column in range(7)] == [True, True, False, False, False, False, True]
    assert differences.markdown().splitlines()[3] == "|---|---|---:|---:|---:|---:|---|"
    assert r"\begin{longtable}{llrrrrl}" in differences.latex()


def test_the_star_is_explained_where_it_stands(results):
    text = " ".join(paper_tables(results)[0].terminal().split())
    assert "*" in text
    assert "Marked: the best mean" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_number_is_cut_however_narrow_the_terminal_and_long_the_name(results, width):
    rows = (replace(results.rows[0], label="a name with all its settings " * 5), *results.rows[1:])
    for grid in paper_tables(replace(results, rows=rows)):
        text = grid.terminal(width=width)
        assert max(map(len, text.splitlines())) <= width
        for row in grid.rows:
            for cell in row[1:]:
                assert cell in text
        for head in grid.columns:
            assert head in text


def test_the_terminal_says_how_wide_it_is(results, monkeypatch):
    grid = paper_tables(results)[0]
    monkeypatch.setenv("COLUMNS", "70")
    assert grid.terminal() == grid.terminal(width=70)
    assert grid.terminal().count("method") == 2
    monkeypatch.delenv("COLUMNS")
    assert grid.terminal(width=160).count("method") == 1


@pytest.mark.parametrize("label", ["[/red]", "[bold]x[/bold]", "[link=file:///etc]"])
def test_brackets_in_names_are_shown_as_they_are(results, label):
    rows = (replace(results.rows[0], label=label), *results.rows[1:])
    for grid in paper_tables(replace(results, rows=rows))[:2]:
        assert label in grid.terminal()
