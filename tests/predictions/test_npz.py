"""The one reader of .npz files: what is declared must be there, and nothing hostile takes time or memory."""

import io
import struct
import warnings
import zipfile

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.predictions import Npz, read_npz
from calibrant.predictions.columns import check_unfolded


def npy(array=None, *, header=None, body=b"", version=(1, 0)):
    """The bytes of an array, or of a header with any text and a body."""
    if header is None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()
    text = header.encode("latin-1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + body


def archive(path, members, compression=zipfile.ZIP_STORED):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as file:
        warnings.simplefilter("ignore")  # of a name that comes twice
        for name, content in members:
            file.writestr(name, content)
    return path


def refused(path, match, name="a"):
    with pytest.raises(InvalidInput, match=match) as caught:
        read_npz(path, [name])
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert path.name in message


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=">i2").reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(["a", "long"]),
        np.array("one text"),
        np.zeros((0, 3), np.float16),
        np.array([True, False]),
    ],
)
def test_plain_arrays_are_read_as_numpy_reads_them(tmp_path, write, array):
    write(tmp_path / "x.npz", a=array, b=np.arange(3))
    found = read_npz(tmp_path / "x.npz", ["a", "missing"])["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert (found == array).all()


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_rows_come_in_blocks(tmp_path, write):
    array = np.arange(21).reshape(7, 3)
    write(tmp_path / "x.npz", a=array)
    with Npz(tmp_path / "x.npz") as file:
        blocks = list(file.rows("a", 3))
    assert [len(block) for block in blocks] == [3, 3, 1]
    assert (np.concatenate(blocks) == array).all()


def test_headers_that_other_tools_write_are_understood(tmp_path):
    header = '{"shape": (2,3), "fortran_order": False, "descr": "<f4"}\n'
    archive(tmp_path / "x.npz", [("a.npy", npy(header=header, body=bytes(24)))])
    assert read_npz(tmp_path / "x.npz", ["a"])["a"].shape == (2, 3)


HEADERS = {
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }": "hold 4000000000000 bytes",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000000, 0), }": "has the shape .* and 0 bytes",
    "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000000000,), }": "has the shape .* and 0 bytes",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }": "whole .npz",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "-" * 9000 + "1,), }": "whole .npz",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 100 + "), }": "whole .npz",
    "{'descr': '<f4', 'fortran_order': False, }": "whole .npz",
    "{'descr': '<f4', 'fortran_order': (3,), 'shape': True, }": "whole .npz",
    "{'descr': '<f3', 'fortran_order': False, 'shape': (1,), }": "whole .npz",
    "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }": "be a plain array, got dtype",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }": "Pickled objects are never loaded",
    "[" * 9000: "whole .npz",
    " " * 20_000: r"whole .npz.*length \(20000\) is large",
}


@pytest.mark.parametrize("header", HEADERS)
def test_hostile_headers_are_refused_at_once(tmp_path, header):
    path = archive(
        tmp_path / "x.npz", [("a.npy", npy(header=header, body=bytes(0 if "1000000000000000000" in header else 4)))]
    )
    refused(path, HEADERS[header])


def test_a_file_that_holds_less_than_it_declares_is_refused(tmp_path):
    """A list of members that says 4 MB over a deflated stream of 960 bytes: no uninitialised memory is passed on."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000,), }"
    content = npy(header=header, body=bytes(960))
    path = archive(tmp_path / "x.npz", [("a.npy", content)], zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", len(content) - 960 + 4_000_000)
    path.write_bytes(data)
    refused(path, "whole .npz|holds less")


def test_an_array_that_comes_twice_is_refused(tmp_path):
    path = archive(tmp_path / "x.npz", [("a.npy", npy(np.zeros(2))), ("a.npy", npy(np.ones(2)))])
    refused(path, "hold each array once, got 'a' twice")
    refused(archive(path, [("a.npy", npy(np.zeros(2))), ("a", npy(np.ones(2)))]), "hold each array once")


def test_what_unfolds_to_far_more_than_its_size_is_refused_before_memory_is_taken(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(2**26, np.uint8), b=np.zeros(2**20, np.uint8))
    refused(tmp_path / "x.npz", "unfold to at most 10 times its size, got 65 MB in a file of 0.")
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(2**20, np.uint8))
    assert len(read_npz(tmp_path / "x.npz", ["a"])["a"]) == 2**20
    check_unfolded("x", 9 * 2**30, 2**30)


def test_an_endless_list_of_members_is_refused(tmp_path):
    path = archive(tmp_path / "x.npz", [(f"{'n' * 200}{k}.npy", b"") for k in range(5000)])
    refused(path, "its list of arrays takes")


def test_other_compressions_are_refused(tmp_path):
    refused(
        archive(tmp_path / "x.npz", [("a.npy", npy(np.zeros(9)))], zipfile.ZIP_BZIP2),
        "'a' has a compression that",
    )


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + bytes(10)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    refused(tmp_path / "x.npz", "be a whole .npz file of plain arrays")


def test_missing_files_and_folders_are_named(tmp_path):
    refused(tmp_path / "x.npz", "does not exist")
    (tmp_path / "x.npz").mkdir()
    refused(tmp_path / "x.npz", "cannot be read")


def test_every_kind_of_damage_is_refused_in_one_line(tmp_path, damage):
    np.savez(tmp_path / "x.npz", a=np.arange(1000.0))
    damage(tmp_path / "x.npz")
    refused(tmp_path / "x.npz", "be a whole .npz file of plain arrays")


def test_a_flipped_bit_is_found(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(1000.0))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[1000] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    refused(tmp_path / "x.npz", "CRC")
