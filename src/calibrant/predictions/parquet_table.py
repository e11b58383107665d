"""Parquet tables that are no predictions, such as decisions and labels, as columns of plain values."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput, invalid
from calibrant.npz import check_unfolded
from calibrant.predictions.parquet_file import parquet_module

# A Python value and the reference to it.
_BYTES_OF_A_VALUE = 64
# Columns of few different values take far less than a byte for each.
_MOST_UNFOLDED = 100


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns of a file."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_table(path: Path, wanted: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Columns of a file, all or those that are wanted; lists and bytes are passed over. Equal values are kept once."""
    types = parquet_module().types
    with _opened(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        kinds = {name: schema.field(place).type for place, name in enumerate(schema.names)}
        if len(kinds) < len(schema.names):
            raise invalid(str(path), "name each column once", ", ".join(schema.names)[:200])
        if wanted is not None:
            kinds = {name: kind for name, kind in kinds.items() if name in wanted}
        needed = metadata.num_rows * len(kinds) * _BYTES_OF_A_VALUE
        check_unfolded(str(path), needed, path.stat().st_size, "Write it again in smaller parts.", most=_MOST_UNFOLDED)
    texts = [name for name, kind in kinds.items() if types.is_string(kind) or types.is_large_string(kind)]
    others = {name for name, kind in kinds.items() if types.is_nested(kind) or types.is_binary(kind)}
    # A long text that the file holds once is not made again for every row.
    with _opened(path, read_dictionary=texts) as file:
        table = file.read(columns=[name for name in kinds if name not in others])
        return {name: _values(table.column(name)) for name in table.column_names}


def _values(column: Any) -> list[Any]:
    if not parquet_module().types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column.validate(full=True)  # damaged indices point beside the dictionary
    found: list[Any] = []
    for chunk in column.chunks:
        known = chunk.dictionary.to_pylist()
        found += [None if place is None else known[place] for place in chunk.indices.to_pylist()]
    return found


@contextmanager
def _opened(path: Path, **settings: Any) -> Iterator[Any]:
    arrow = parquet_module()
    try:
        with arrow.parquet.ParquetFile(path, page_checksum_verification=True, **settings) as file:
            yield file
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist.") from error
    except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise invalid(str(path), "be a whole Parquet file", f"something else ({str(error)[:200]})") from error
