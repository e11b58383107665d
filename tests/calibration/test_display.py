import pytest

from calibrant.calibration import METHODS, make_calibrator


@pytest.mark.parametrize("method", METHODS)
def test_a_notebook_shows_parameters_and_fit(method, draw, notebook_rows):
    logits, targets = draw(n=1200)
    calibrator = make_calibrator(method)
    parameters = [[name, str(value)] for name, value in calibrator.get_params().items()]
    assert notebook_rows(calibrator) == parameters
    assert "not fitted yet" in calibrator._repr_html_()
    found = dict(notebook_rows(calibrator.fit(logits, targets)))
    assert (found["classes"], found["cases"]) == ("4", "1200")
    assert float(found["nll_after"]) == pytest.approx(calibrator.summary_.nll_after)
    assert ("temperature" in found) == (method == "temperature")
