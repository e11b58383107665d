"""`module:name` from the working directory; what is refused is in models/test_external.py and methods/test_own.py."""

import hashlib
import sys

import pytest

from calibrant.errors import InvalidInput
from calibrant.own_code import fingerprint, load_callable


@pytest.fixture
def mine(tmp_path, monkeypatch):
    path = tmp_path / "my_parts.py"
    path.write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("my_parts", None)


def test_a_function_is_found_and_the_path_left_as_it_was(mine):
    before = list(sys.path)
    assert load_callable("my_parts", "twice", kind="method")(4) == 8
    assert sys.path == before


def test_the_fingerprint_is_that_of_the_file(mine):
    assert fingerprint("my_parts", kind="method") == hashlib.sha256(mine.read_bytes()).hexdigest()
    assert fingerprint("sys", kind="method") == ""


def test_the_message_says_what_it_was_for(mine):
    with pytest.raises(InvalidInput, match="method my_parts:thrice must name a function or class in my_parts"):
        load_callable("my_parts", "thrice", kind="method")
    with pytest.raises(InvalidInput, match="A known model has no colon"):
        load_callable("my_partz", "twice", kind="model")
