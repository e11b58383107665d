"""Probabilities that were written with few decimals: which rows of text files are divided by their sums."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.predictions import scan


def softmax_rows(rows, classes, seed=0):
    rng = np.random.default_rng(seed)
    powers = np.exp(2 * rng.normal(size=(rows, classes)))
    return powers / powers.sum(axis=1, keepdims=True), rng.integers(classes, size=rows)


def write(path, texts, targets):
    names = [f"p_{k}" for k in range(len(texts[0]))]
    if path.suffix == ".jsonl":
        lines = [
            json.dumps(dict(zip(names, map(float, row), strict=True)) | {"target": int(target)})
            for row, target in zip(texts, targets, strict=True)
        ]
    else:
        cells = [[*row, str(target)] for row, target in zip(texts, targets, strict=True)]
        lines = [",".join(row) for row in [[*names, "target"], *cells]]
    path.write_text("\n".join(lines) + "\n")
    return path


def rounded(values, decimals):
    return [[f"{value:.{decimals}f}" for value in row] for row in values]


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize(("decimals", "classes"), [(2, 5), (3, 10), (4, 10), (4, 1000), (5, 1000)])
def test_rounded_rows_are_divided_by_their_sums_with_one_warning(tmp_path, ending, decimals, classes):
    values, targets = softmax_rows(300, classes)
    texts = rounded(values, decimals)
    path = write(tmp_path / f"p{ending}", texts, targets)
    with pytest.warns(CalibrantWarning, match=rf"p{ending}: \d+ of 300 rows .* rounded to {decimals} dec") as caught:
        scores = Predictions.load(path).scores
    assert len(caught) == 1
    written = np.array(texts, dtype=float)
    totals = written.sum(axis=1)
    off = np.abs(totals - 1) > 1.00001e-4
    assert off.any()
    assert scores[~off].tobytes() == written[~off].tobytes()
    np.testing.assert_allclose(scores[off], written[off] / totals[off, None], rtol=1e-15)


def test_metrics_of_rounded_probabilities_are_close_to_those_of_all_digits(tmp_path):
    values, _ = softmax_rows(2000, 10)
    targets = values.argmax(axis=1)
    path = write(tmp_path / "p.csv", rounded(values, 4), targets)
    with pytest.warns(CalibrantWarning):
        few = evaluate(Predictions.load(path), n_resamples=0)
    full = evaluate(Predictions.from_probabilities(values, targets), n_resamples=0)
    assert few.nll == pytest.approx(full.nll, abs=1e-3)
    assert few.ece == pytest.approx(full.ece, abs=1e-3)
    assert few.test_error == full.test_error


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize("mmap", [False, True])
def test_neither_blocks_nor_the_way_of_reading_matter(tmp_path, monkeypatch, ending, mmap):
    values, targets = softmax_rows(300, 10)
    # Only the last rows have all their four decimals.
    texts = [["1.0", *["0.0"] * 9]] * 200 + rounded(values, 4)
    path = write(tmp_path / f"p{ending}", texts, [0] * 200 + targets.tolist())
    with pytest.warns(CalibrantWarning):
        whole = Predictions.load(path).scores
    monkeypatch.setattr("calibrant.predictions.table_files._CSV_BYTES", 2**9)
    monkeypatch.setattr("calibrant.predictions.table_files._JSON_ROWS", 7)
    with pytest.warns(CalibrantWarning) as caught:
        assert Predictions.load(path, mmap=mmap).scores.tobytes() == whole.tobytes()
    assert len(caught) == 1
    with pytest.warns(CalibrantWarning):
        assert np.concatenate([block.scores for block in scan(path)]).tobytes() == whole.tobytes()


# A file's rows, as text, and what is wrong with them.
WRONG = {
    "half": ([["0.25", "0.25"], ["0.5", "0.5"]], "sum to 1 within .* got 0.5 in row 0"),
    "percentages": ([["90", "10"], ["33.3", "66.6"]], "got 100 in row 0. These look like percentages"),
    "a class is missing": ([["0.8012", "0.1233"], ["0.5", "0.4988"]], "within 0.0002 .* got 0.9245 in row 0"),
    "late": ([["0.3333", "0.3333", "0.3333"]] * 9 + [["0.33", "0.33", "0.33"]], "within 0.00025 .* 0.99 in row 9"),
    "mixed decimals": ([["0.33", "0.33", "0.33"], ["0.123456", "0.123456", "0.753088"]], "got 0.99 in row 0"),
    "scientific": ([["9.9e-1", "2e-5"], ["0.5", "0.5"]], "within 0.00011 .* got 0.99002 in row 0"),
    "whole numbers": ([["1", "1", "0"], ["1", "0", "0"]], "got 2 in row 0"),
    "nothing": ([["0", "0", "0"], ["1", "0", "0"]], "got 0 in row 0"),
    "too coarse": ([["0.1"] * 11, ["0.1"] * 10 + ["0"]], "within 0.0501 .* got 1.1 in row 0"),
    "many, two decimals": ([["0.01"] * 80 + ["0"] * 120], "within 0.0501 .* got 0.8 in row 0"),
    "negative": ([["1.01", "-0.01", "0.01"]], "not be negative"),
    "all digits": ([["0.3331234567891", "0.6671234567891"]], "within 0.0001 .* write more digits"),
}


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_still_refused(tmp_path, ending, name):
    texts, match = WRONG[name]
    path = write(tmp_path / f"p{ending}", texts, [0] * len(texts))
    with (
        warnings.catch_warnings(),
        pytest.raises(InvalidInput, match=rf"p{ending}: probabilities in p_0, .* must .*{match}"),
    ):
        warnings.simplefilter("error")
        Predictions.load(path)


@pytest.mark.parametrize(
    "texts",
    [
        [["1", "0", "0"], ["0", "1", "0"]],
        [["0.3333", "0.3333", "0.3333"], ["0.50005", "0.25", "0.25"]],
        [["1e-4", "0.9999", "0"], ["0.1", "0.3", "0.5999"]],
        # Computed in binary, these sums are beyond 1.0001 by a little.
        [["0.2001", "0.7", "0.1"], ["0.1001", "0.2", "0.7"], ["0.0001", "0.9", "0.1"]],
    ],
)
def test_rows_within_the_usual_tolerance_stay_as_they_are_written(tmp_path, texts):
    path = write(tmp_path / "p.csv", texts, [0] * len(texts))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Predictions.load(path).scores.tolist() == [list(map(float, row)) for row in texts]


def test_small_numbers_may_be_written_with_an_exponent(tmp_path):
    path = write(tmp_path / "p.csv", [["0.3331", "3.3e-1", "0.3365", "2e-04", "4e-4"]], [0])
    with pytest.warns(CalibrantWarning, match=r"by up to 0.0002. Probabilities that are rounded to 4 decimals"):
        assert Predictions.load(path).scores.sum() == pytest.approx(1, abs=1e-15)


def test_each_file_of_a_folder_has_its_own_decimals(tmp_path):
    write(tmp_path / "a.csv", [["0.33", "0.33", "0.33"]], [0])
    write(tmp_path / "b.csv", [["0.123456", "0.123456", "0.753088"]], [0])
    with pytest.warns(CalibrantWarning, match=r"a.csv: 1 of 1 rows .* by up to 0.01"):
        scores = Predictions.load(tmp_path).scores
    np.testing.assert_allclose(scores[0], 1 / 3)


def test_data_frames_and_parquet_files_are_not_rounded_text(tmp_path):
    frame = pd.DataFrame({"p_a": [0.33], "p_b": [0.33], "p_c": [0.33], "target": ["a"]})
    with pytest.raises(InvalidInput, match=r"sum to 1 within 0.0001 .* divide each row by its sum"):
        Predictions.from_frame(frame)
    frame.to_parquet(tmp_path / "p.parquet")
    with pytest.raises(InvalidInput, match=r"sum to 1 within 0.0001"):
        Predictions.load(tmp_path / "p.parquet")
