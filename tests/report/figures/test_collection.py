from calibrant.report import read_entries
from calibrant.report.figures import save_figures


def test_every_figure_the_data_allow_is_written_twice(run_folder, make, tmp_path):
    entries = [*read_entries([run_folder]), ("../escape", make(n=100))]
    written = save_figures(entries, tmp_path / "figures")
    stems = {"reliability-grid", "accuracy-coverage", "risk-coverage", "1-kept", "1-scores"}
    stems |= {f"{number}-{kind}" for number in (1, 2) for kind in ("reliability", "confidence", "threshold")}
    assert {path.name for path in written} == {f"{stem}.{ending}" for stem in stems for ending in ("svg", "png")}
    # A method's name is never a path.
    assert {path.name for path in tmp_path.iterdir()} == {"run", "figures"}
    assert all(path.stat().st_size > 1000 for path in written)


def test_names_are_text_and_no_formula(make, tmp_path):
    written = save_figures({"$\\frac{": make(n=40), "\ud800 \x1b": make(n=40, seed=1)}, tmp_path)
    assert all(path.stat().st_size for path in written)
