import pytest

from calibrant.calibration import METHODS, TemperatureScaling, make_calibrator
from calibrant.calibration.method_choice import NoCalibration


@pytest.mark.parametrize("method", METHODS)
def test_a_notebook_shows_parameters_and_fit(method, draw, notebook_rows):
    logits, targets = draw(n=1200)
    calibrator = make_calibrator(method)
    parameters = [[name, str(value)] for name, value in calibrator.get_params().items()]
    assert notebook_rows(calibrator) == parameters
    assert "not fitted yet" in calibrator._repr_html_()
    rows = notebook_rows(calibrator.fit(logits, targets))
    summary = calibrator.summary_
    assert rows[: len(parameters)] == parameters
    found = dict(rows)
    assert (found["classes"], found["fitted on"]) == ("4", "1,200 cases")
    assert found["their NLL before"] == f"{summary.nll_before:.4f}"
    assert found["their NLL after"].startswith(f"{summary.nll_after:.4f} ")
    assert "not fitted yet" not in calibrator._repr_html_()


def test_the_temperature_is_shown(draw, notebook_rows):
    scaling = TemperatureScaling().fit(*draw(n=1200))
    assert dict(notebook_rows(scaling))["temperature"] == f"{scaling.temperature_:.4f}"


def test_a_map_that_changes_nothing_and_notes_are_named(draw, notebook_rows):
    logits, targets = draw(n=1200)
    assert dict(notebook_rows(NoCalibration().fit(logits, targets)))["map"] == "changes nothing"
    with pytest.warns(UserWarning, match="."):
        separable = TemperatureScaling().fit(logits, logits.argmax(axis=1))
    assert dict(notebook_rows(separable))["note"] == separable.summary_.notes[0]
