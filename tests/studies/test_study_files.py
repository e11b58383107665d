from pathlib import Path

import pytest

from calibrant.studies import StudySpec

FILES = sorted((Path(__file__).parents[2] / "recipes" / "studies").glob("*.toml"))


def test_there_are_studies():
    assert len(FILES) >= 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_study_file_describes_runs_that_could_start(path):
    spec = StudySpec.load(path)
    cells = spec.runs()
    assert len(cells) == (len(spec.methods) + len(spec.variants)) * len(spec.seeds) * len(spec.data) * len(spec.models)
    data, model = path.stem.split("-")[:2]
    assert {(planned.recipe.data.name, planned.recipe.model.name) for planned in cells} == {(data, model)}
    assert len({planned.name for planned in cells}) == len(cells)
