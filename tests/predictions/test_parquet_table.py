"""Parquet files whose damage only their values show."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import Predictions
from calibrant.predictions.parquet_table import parquet_table


@pytest.fixture
def damaged(tmp_path):
    """Texts of which one is the fourth of the three that the file holds, as a flipped bit makes it."""
    path = tmp_path / "damaged.parquet"
    n = 48
    columns = {"id": [str(row) for row in range(n)], "target": ["cat", "dog", "cow"] * (n // 3)}
    columns |= {f"probability_{name}": [1 / 3] * n for name in ("cat", "dog", "cow")}
    pq.write_table(pa.table(columns), path, compression="none")
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
    content = bytearray(path.read_bytes())
    # Two bits a row, the last four rows in the last byte of the column.
    content[chunk.dictionary_page_offset + chunk.total_compressed_size - 1] = 0b11111111
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("read", [parquet_table, Predictions.load])
def test_a_value_that_the_dictionary_does_not_hold_is_one_line(damaged, read):
    with pytest.raises(InvalidInput, match=r"must be a whole Parquet file.*out of bounds") as told:
        read(damaged)
    assert "\n" not in str(told.value)
