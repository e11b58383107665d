"""Ways to damage a file: blind ones for any bytes, and such as know the format and keep the rest of it whole."""

import io
import json
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

DEEP = "deeply nested"
STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 2.5, 1e308, -0.0, 10**9, 10**30, [], {}, [1], [[0.5]], [None], {"a": 1}, DEEP),
    *("", "0", "cat", "é", "\ud800", "[/red]", "[bold]x", "a\x1b[31m", "=HYPERLINK(1)", "../../x", "os:abort", "\x00"),
    *("9" * 400, "x" * 5000),
]
_DEPTH = 100_000


def damage(path: Path, random: Random) -> str:
    """Change the file in place and say how."""
    own = _BY_SUFFIX.get(path.suffix, [])
    change = random.choice([*_BLIND, *own, *own])
    before = path.read_bytes()
    try:
        after = change(before, random)
    except Exception:  # noqa: BLE001 (of any of the libraries that read it)
        # A file that an earlier change has damaged may not be what the format-aware change expects.
        change, after = flip, flip(before, random)
    path.write_bytes(after)
    return change.__name__


# for any bytes --------------------------------------------------------------------------------------------------------


def flip(data: bytes, random: Random) -> bytes:
    """Flip some single bits."""
    changed = bytearray(data or b"\0")
    for _ in range(random.choice([1, 1, 1, 2, 8, 64])):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncate(data: bytes, random: Random) -> bytes:
    """Cut the end off."""
    return data[: random.randrange(len(data) + 1)]


def insert(data: bytes, random: Random) -> bytes:
    """Put other bytes somewhere in between."""
    extra = random.choice([b"\0", b"\xff\xfe", b"\n", b"\r", b'"', b",", b"\xe9", b"0" * 5000, random.randbytes(20)])
    place = random.randrange(len(data) + 1)
    return data[:place] + extra + data[place:]


def repeat(data: bytes, random: Random) -> bytes:
    """Write a stretch twice."""
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[begin:]


def blank(data: bytes, random: Random) -> bytes:
    """Overwrite a stretch."""
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:begin] + random.choice([b"\0", b" ", b"\xff", b"9"]) * (end - begin) + data[end:]


def empty(data: bytes, random: Random) -> bytes:
    """Leave nothing, or something else altogether."""
    del data
    return random.choice([b"", b"\n", b"{}", b"[]", b"null", b"PK\5\6" + bytes(18), b"\x89PNG\r\n\x1a\n", bytes(100)])


_BLIND: list[Callable[[bytes, Random], bytes]] = [flip, truncate, insert, repeat, blank, empty]


# JSON and TOML --------------------------------------------------------------------------------------------------------


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container and key in a tree."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(pairs):
        found.append((value, key))
        _places(child, found)
    return found


def _json(content: Any) -> bytes:
    text = json.dumps(content)
    return text.replace(json.dumps(DEEP), "[" * _DEPTH + "]" * _DEPTH).encode("utf-8", "surrogatepass")


def json_value(data: bytes, random: Random) -> bytes:
    """Put a strange value at some place of the tree; half of the time the digest is left out, as in old files."""
    content = json.loads(data)
    places = _places(content, [])
    holder, key = random.choice(places)
    holder[key] = random.choice(STRANGE)
    if isinstance(content, dict) and random.random() < 0.5:
        content.pop("sha256", None)
    return _json(content)


def json_key(data: bytes, random: Random) -> bytes:
    """Leave a member out, add one, or write it twice."""
    content = json.loads(data)
    holder, key = random.choice(_places(content, []))
    kind = random.randrange(3)
    if kind == 0:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(0, random.choice(STRANGE))
    elif kind == 1:
        holder[random.choice(["", "more", "classes", "\ud800", "x" * 999])] = random.choice(STRANGE)
    else:
        text = json.dumps(content)
        return text.replace("{", "{" + json.dumps(key) + ": 1, ", 1).encode("utf-8", "surrogatepass")
    if isinstance(content, dict) and random.random() < 0.5:
        content.pop("sha256", None)
    return _json(content)


def json_number(data: bytes, random: Random) -> bytes:
    """Replace the text of a number."""
    numbers = list(re.finditer(rb"-?\d[\d.eE+-]*", data))
    found = random.choice(numbers)
    new = random.choice([b"1" * 5000, *b"1e999 -1 NaN Infinity 1e-400 0x10 01 1. 10000000000".split()])
    return data[: found.start()] + new + data[found.end() :]


def json_line(data: bytes, random: Random) -> bytes:
    """Damage one line of a file with one JSON value per line."""
    lines = data.splitlines()
    place = random.randrange(len(lines))
    lines[place] = random.choice([json_value, json_key, json_number])(lines[place], random)
    return b"\n".join(lines) + b"\n"


def toml_value(data: bytes, random: Random) -> bytes:
    """Put another value behind some key."""
    keys = list(re.finditer(rb"(?m)^([\w.\"-]+) = .*$", data))
    found = random.choice(keys)
    values = [
        *b"1 -1 0 1e400 nan inf true [] {} [[[]]] 1979-05-27 10000000000000 'os:abort'".split(),
        *(b'"x"', b'"\\u0000"', b'"[/red]"', b"'''\n", b"[" * _DEPTH, b"9" * 5000, b"{a=" * 5000),
    ]
    return data[: found.start(0)] + found[1] + b" = " + random.choice(values) + data[found.end(0) :]


def toml_key(data: bytes, random: Random) -> bytes:
    """Add, repeat or drop a line."""
    lines = data.splitlines()
    place = random.randrange(len(lines))
    deep = [b"a" + b".a" * 20_000 + b" = 1", b"[" + b"a." * 999 + b"a]"]
    extra = [lines[place], b"more = 1", b"[more]", b"[[data]]", b"\xff = 1", *deep]
    lines[place : place + random.randrange(2)] = [random.choice(extra)] if random.random() < 0.8 else []
    return b"\n".join(lines) + b"\n"


# tables ---------------------------------------------------------------------------------------------------------------


def csv_cell(data: bytes, random: Random) -> bytes:
    """Replace a cell, of the header or of a row."""
    rows = [line.split(b",") for line in data.splitlines()]
    row = rows[0] if random.random() < 0.4 else random.choice(rows)
    cells = [
        *b"x nan inf 1e999 -1 3 1.0 cat target id logit_cat probability_dog 1,1 0x1 1_000 =1+1".split(),
        *(b"", b'"', b'""', b"\xe9", b"\0", b" 1 ", b"\xef\xbb\xbfid", b"\xd9\xa3", b"9" * 300),
    ]
    row[random.randrange(len(row))] = random.choice(cells)
    return b"\n".join(b",".join(row) for row in rows) + b"\n"


def csv_form(data: bytes, random: Random) -> bytes:
    """Another separator, line end or encoding; a row or a column more or less."""
    lines = data.splitlines()
    kind = random.randrange(6)
    if kind == 0:
        return data.replace(b",", random.choice([b";", b"\t", b"|", b", "]))
    if kind == 1:
        return data.replace(b"\n", random.choice([b"\r\n", b"\r", b"\n\n"]))
    if kind == 2:
        return data.decode().encode(random.choice(["utf-16", "utf-8-sig", "utf-32"]))
    if kind == 3:
        place = random.randrange(len(lines))
        line = lines[place]
        lines[place] = random.choice([b"", b",,,,,,", line + b",1", lines[0], b'"' + line, b"#" + line])
    elif kind == 4:
        column = random.randrange(5)
        lines = [b",".join(c for i, c in enumerate(line.split(b",")) if i != column) for line in lines]
    else:
        doubled = random.random() < 0.5
        lines = [line + b"," + line if doubled else b"extra," + line for line in lines]
    return b"\n".join(lines) + b"\n"


def parquet_table(data: bytes, random: Random) -> bytes:
    """A whole Parquet file with columns of other names and types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    place = random.randrange(table.num_columns)
    name, rows = table.column_names[place], table.num_rows
    kind = random.randrange(6)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        values = [None, 1, "x", 1.5, True, b"\xff", [1.0], 10**18, float("nan"), "[/red]", {"a": 1}]
        table = table.set_column(place, name, pa.array([random.choice(values)] * rows))
    elif kind == 2:
        table = table.append_column(random.choice([name, "target", "logit_x", "", "extra"]), table.column(place))
    elif kind == 3:
        table = table.slice(0, 0)
    elif kind == 4:
        new = random.choice(["target", "id", "x"])
        table = table.rename_columns([new if column == name else column for column in table.column_names])
    else:
        cells = table.column(place).to_pylist()
        cells[random.randrange(rows)] = None
        table = table.set_column(place, name, pa.array(cells))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


# archives of arrays ---------------------------------------------------------------------------------------------------


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def _archive(members: list[tuple[str, bytes]], random: Random) -> bytes:
    buffer = io.BytesIO()
    kind = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", kind) as archive:
        warnings.simplefilter("ignore")  # a name that is there twice is what we want, and nothing that a reader said
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=kind)
    return buffer.getvalue()


def npz_header(data: bytes, random: Random) -> bytes:
    """Change what an array says of itself, in an archive that is whole."""
    members = _members(data)
    name = random.choice(list(members))
    content = members[name]
    (length,) = struct.unpack_from("<H", content, 8)
    head, body = content[10 : 10 + length].decode("latin-1"), content[10 + length :]
    shapes = ["()", "(0,)", "(1,)", f"({10**12},)", f"({10**18}, 0)", "(2, 2)", "(-1,)", "(3, 3, 3)"]
    shapes.append("(" + "-" * 9000 + "1,)")
    types = [
        f"'{kind}'"
        for kind in ["|O", "<f2", "<f8", "<c16", "<U9", "|S3", "<i1", "|b1", ">f4", "<M8[ns]", "<f16", "<U999999999"]
    ]
    types.append("[('a', '<f8')]")
    if random.random() < 0.5:
        head = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {random.choice(shapes)}", head)
    else:
        head = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': {random.choice(types)}", head)
    if random.random() < 0.1:
        head = head.replace("False", "True")
    raw = head.strip().encode("latin-1") + b"\n"
    members[name] = content[:8] + struct.pack("<H", len(raw)) + raw + body
    return _archive(list(members.items()), random)


def npz_members(data: bytes, random: Random) -> bytes:
    """Leave an array out, write it twice, swap two, or make one of another type or size."""
    members = list(_members(data).items())
    place, other = random.randrange(len(members)), random.randrange(len(members))
    kind = random.randrange(5)
    if kind == 0:
        del members[place]
    elif kind == 1:
        members.append(members[place])
    elif kind == 2:
        (one, first), (two, second) = members[place], members[other]
        members[place], members[other] = (one, second), (two, first)
    else:
        members[place] = (members[place][0], _other_array(members[place][1], random))
    return _archive(members, random)


def _other_array(content: bytes, random: Random) -> bytes:
    array = np.load(io.BytesIO(content))
    text = array.dtype.kind == "U"
    choices = [
        *(array[..., None], array.ravel(), array[:1] if array.ndim else array),
        *(np.full(array.shape, value) for value in (np.nan, -1, 10**15)),
        *(np.zeros(2**22), np.array("x"), np.array(3)),
        *((np.zeros(array.shape),) if text else (array.astype("U"), array.astype(bool))),
    ]
    buffer = io.BytesIO()
    np.save(buffer, choices[random.randrange(len(choices))])
    return buffer.getvalue()


def npz_list(data: bytes, random: Random) -> bytes:
    """Change sizes, offsets or check sums in the list at the end of the archive."""
    changed = bytearray(data)
    start = data.find(b"PK\1\2")
    if start < 0:
        raise ValueError("no list of members")
    place, width = random.choice([(16, 4), (20, 4), (24, 4), (42, 4), (10, 2), (8, 2), (28, 2)])
    new = random.choice([0, 1, 255, 65535, 2**31, 2**32 - 1, random.randrange(2**32)]) % 2 ** (8 * width)
    changed[start + place : start + place + width] = new.to_bytes(width, "little")
    return bytes(changed)


# pictures and tensors -------------------------------------------------------------------------------------------------


def png_size(data: bytes, random: Random) -> bytes:
    """Declare another width and height, with the right check sum."""
    if not data.startswith(b"\x89PNG"):
        raise ValueError("no PNG")
    sides = [0, 1, 8, 4096, 8192, 13_000, 70_000, 2**31 - 1]
    body = b"IHDR" + struct.pack(">II", random.choice(sides), random.choice(sides)) + data[24:29]
    return data[:12] + body + struct.pack(">I", zlib.crc32(body)) + data[33:]


def tensors_header(data: bytes, random: Random) -> bytes:
    """Damage the JSON at the beginning of a safetensors file, or its length."""
    (length,) = struct.unpack_from("<Q", data)
    if random.random() < 0.3:
        return struct.pack("<Q", random.choice([0, 1, 2**40, 2**63, length + 1])) + data[8:]
    head = random.choice([json_value, json_key, json_number])(data[8 : 8 + length], random)
    return struct.pack("<Q", len(head)) + head + data[8 + length :]


def odd_name(folder: Path, random: Random) -> str:
    """Rename a folder or a file below `folder` to something that a person would not choose."""
    path = random.choice(sorted(folder.rglob("*")))
    names = [b"caf\xe9", b"[bold]", b"a\x1b[31m", b"x\ny", b" ", b"=1+1", b"'", b"\xff\xfe", b"\xc3\xa9", b"a" * 200]
    new = os.fsencode(path.parent) + b"/" + random.choice(names) + os.fsencode(path.suffix)
    path.rename(os.fsdecode(new))
    return f"odd_name {new!r}"


_BY_SUFFIX: dict[str, list[Callable[[bytes, Random], bytes]]] = {
    ".json": [json_value, json_key, json_number],
    ".jsonl": [json_line],
    ".toml": [toml_value, toml_key],
    ".csv": [csv_cell, csv_form],
    ".parquet": [parquet_table],
    ".npz": [npz_header, npz_members, npz_list],
    ".png": [png_size],
    ".safetensors": [tensors_header],
}
