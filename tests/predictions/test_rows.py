"""One pass over the rows, whichever way they lie in memory."""

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import rows as module
from calibrant.predictions.rows import FEW_CLASSES, check_rows, check_tops

LAYOUTS = {
    "by rows": np.ascontiguousarray,
    "by columns": np.asfortranarray,
    "part of a buffer by columns": lambda scores: np.concatenate([scores, scores]).copy(order="F")[: len(scores)],
    "every other row": lambda scores: np.repeat(scores, 2, axis=0)[::2],
    "every other column": lambda scores: np.repeat(scores, 2, axis=1)[:, ::2],
    "backwards": lambda scores: scores[::-1, ::-1].copy()[::-1, ::-1],
}
WIDTHS = [1, 2, 10, FEW_CLASSES, FEW_CLASSES + 1]


def awkward(classes, dtype, rows=200):
    """Probabilities in sixty-fourths: many ties at the top, zeros, minus zeros, and one a little above 1."""
    rng = np.random.default_rng(classes)
    scores = (rng.multinomial(64, rng.dirichlet(np.full(classes, 0.5), rows)) / 64).astype(dtype)
    scores[3] = -0.0
    scores[3, -1] = np.nextafter(dtype(1), dtype(2))
    return scores, rng.integers(0, classes, rows)


@pytest.fixture(params=[2**19, 300], ids=["one chunk", "many chunks"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ENTRIES", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", WIDTHS)
def test_probabilities_are_read_the_same_in_every_layout(classes, dtype, layout):
    scores, targets = awkward(classes, dtype)
    rows = [row.tolist() for row in scores]
    tops = [min(1.0, max(row)) for row in rows]
    firsts = [row.index(max(row)) for row in rows]
    given = LAYOUTS[layout](scores)
    precision = np.dtype(dtype).name
    found = check_rows(given, targets, "probabilities", precision)
    assert found.confidence.tolist() == tops
    assert found.predicted.tolist() == firsts
    assert found.of_target.tolist() == [row[target] for row, target in zip(rows, targets, strict=True)]
    confidence, predicted = check_tops(given, targets, "probabilities", precision)
    assert confidence.dtype == dtype
    assert confidence.tolist() == tops
    assert predicted.tolist() == firsts


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("classes", WIDTHS)
def test_logits_are_read_the_same_in_every_layout(classes, layout):
    scores, targets = awkward(classes, np.float32)
    scores *= 8
    powers = np.exp(scores.astype(np.float64))
    own = powers[np.arange(len(scores)), targets]
    given = LAYOUTS[layout](scores)
    found = check_rows(given, targets, "logits", "float32")
    np.testing.assert_allclose(found.confidence, powers.max(axis=1) / powers.sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(found.nll, np.log(powers.sum(axis=1) / own), rtol=1e-12, atol=1e-14)
    assert found.predicted.tolist() == [row.index(max(row)) for row in scores.tolist()]
    confidence, predicted = check_tops(given, targets, "logits", "float32")
    assert (confidence.tolist(), predicted.tolist()) == (found.confidence.tolist(), found.predicted.tolist())


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("classes", [10, FEW_CLASSES + 1])
@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (np.nan, "finite, got nan in row 150, column 7"),
        (np.inf, "finite, got inf in row 150, column 7"),
        (-0.25, "not be negative, got -0.25 in row 150, column 7"),
        (3.0, r"sum to 1 within 0.0001 in every row, got .* in row 150\."),
    ],
)
@pytest.mark.parametrize("read", [check_rows, check_tops])
def test_the_first_bad_row_is_named_in_every_layout(read, bad, match, classes, layout):
    scores, targets = awkward(classes, np.float32)
    scores[150, 7] = scores[180, 2] = bad
    with pytest.raises(InvalidInput, match=match):
        read(LAYOUTS[layout](scores), targets, "probabilities", "float32")
