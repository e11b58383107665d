import contextlib
import json

import pytest

from calibrant.errors import InvalidInput
from calibrant.training.checkpoint import append_line, read_log, write_log


@pytest.fixture
def path(tmp_path, epoch_line):
    write_log(tmp_path / "metrics.jsonl", [epoch_line(1), epoch_line(2, validation={"accuracy": 0.9, "ece": 0.1})])
    append_line(tmp_path / "metrics.jsonl", epoch_line(3))
    return tmp_path / "metrics.jsonl"


def test_what_is_written_is_read(path, epoch_line):
    assert read_log(path)[2] == epoch_line(3)
    assert [line["epoch"] for line in read_log(path)] == [1, 2, 3]
    assert [line["epoch"] for line in read_log(path, epochs=2)] == [1, 2]
    assert read_log(path.with_name("none")) == []


def test_nan_is_not_written(path, epoch_line):
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_line(path, epoch_line(4, loss=float("nan")))


def test_a_line_torn_by_a_kill_is_left_out(path):
    with path.open("ab") as log:
        log.write(b'{"epoch": 4, \xff')
    assert [line["epoch"] for line in read_log(path)] == [1, 2, 3]


def test_no_flipped_bit_makes_a_line_vanish(path):
    """Every bit of the second line: the log has all lines, or is refused; where the line lost its end, too."""
    sound = path.read_bytes()
    ends = [number for number, byte in enumerate(sound) if byte == ord("\n")]
    for position in range(ends[0] + 1, ends[1] + 1, 7):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(InvalidInput):
                assert [line["epoch"] for line in read_log(path, epochs=3)] == [1, 2, 3]
    damaged = bytearray(sound)
    damaged[ends[2]] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InvalidInput, match="2 whole lines for 3 epochs"):
        read_log(path, epochs=3)


@pytest.mark.parametrize(
    "line",
    [
        *("[1, 2]", '"text"', "null", "{", "", "[" * 100_000, '{"epoch": 1}', "1" * 5000),
        *({"epoch": 3}, {"epoch": 2.0}, {"epoch": True}, {"train_seconds": "1"}, {"seconds": None}, {"loss": [1]}),
        *({"validation": {}}, {"validation": {"accuracy": "x", "ece": 0}}, {"loss": float("nan")}, {"samples": -1}),
    ],
)
def test_a_line_with_the_wrong_content_is_named(path, line, epoch_line):
    first, _, third = path.read_text().splitlines()
    second = line if isinstance(line, str) else json.dumps({**epoch_line(2), **line})
    path.write_text(f"{first}\n{second}\n{third}\n")
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl, line 2, is damaged"):
        read_log(path)
