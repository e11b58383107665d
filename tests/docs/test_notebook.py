"""The notebook runs from its first cell to its last, and what it shows are tables and pictures."""

import base64
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from PIL import Image

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial" / "notebook.ipynb"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The data of the last output of each code cell, under the cell's last line."""
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "clear the outputs before you commit"
    folder = tmp_path_factory.mktemp("notebook")
    NotebookClient(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    assert (folder / "page.html").is_file()
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells)
    return {cell.source.splitlines()[-1]: cell.outputs[-1].data for cell in cells}


@pytest.mark.parametrize(
    ("line", "name", "text"),
    [
        ("evaluate(test)", "Evaluation", "ECE"),
        ("calibrator", "TemperatureScaling", "temperature"),
        ("compare(calibrated, test, n_resamples=200)", "Comparison", "NLL"),
        ("rule", "RoutingRule", "promised accuracy"),
        ("check_promise(rule, calibrated)", "PromiseCheck", "The promised accuracy of 99 % (holds|is missed, but)"),
        ("evaluate_classes(calibrated)", "ClassEvaluation", "airplane"),
        ('load_dataset("digits")', "Dataset", "1,?[0-9]{3}"),
    ],
)
def test_objects_show_themselves_as_tables(shown, line, name, text):
    html = shown[line]["text/html"]
    assert html.startswith(f"<table><caption>{name}")
    assert re.search(text, html)
    # At the prompt: a few lines, none of them long.
    lines = shown[line]["text/plain"].splitlines()
    assert 1 <= len(lines) <= 40
    assert max(map(len, lines)) < 400


@pytest.mark.parametrize(
    ("line", "shape", "colours"),
    [
        # Width and height in inches at 160 dots per inch; blue bars, amber boxes, a vermillion line.
        (
            'reliability_diagram(test, title="as it comes")',
            (5.2, 5.6),
            {"bars": (0, 114, 178), "boxes": (251, 227, 173)},
        ),
        ("figure", (10, 4), {"bars": (0, 114, 178), "boxes": (251, 227, 173)}),
    ],
)
def test_figures_show_themselves_as_pictures(shown, line, shape, colours):
    picture = Image.open(io.BytesIO(base64.b64decode(shown[line]["image/png"]))).convert("RGB")
    assert picture.size == tuple(round(160 * inches) for inches in shape)
    pixels = np.asarray(picture).reshape(-1, 3)
    for name, colour in colours.items():
        assert (pixels == colour).all(axis=1).mean() > 0.0005, name
    assert (pixels == 255).all(axis=1).mean() > 0.3  # the ground stays white
