"""`module:name` from the working directory; what is refused is in models/test_external.py and methods/test_own.py."""

import hashlib
import sys
from types import ModuleType

import pytest

from calibrant.errors import InvalidInput
from calibrant.own_code import fingerprint, load_callable, own_code_at_work


@pytest.fixture
def mine(own_module):
    return own_module("my_parts", "def twice(x):\n    return 2 * x\n")


def test_a_function_is_found_and_the_path_left_as_it_was(mine):
    before = list(sys.path)
    assert load_callable("my_parts", "twice", kind="method")(4) == 8
    assert sys.path == before


def test_the_fingerprint_is_that_of_the_file(mine):
    assert fingerprint("my_parts", kind="method") == hashlib.sha256(mine.read_bytes()).hexdigest()
    assert fingerprint("sys", kind="method") == ""


def test_the_message_says_what_it_was_for(mine):
    with pytest.raises(
        InvalidInput, match=r"method my_parts:thrice must name a function or class in .*my_parts\.py, got"
    ):
        load_callable("my_parts", "thrice", kind="method")
    with pytest.raises(InvalidInput, match="A known model has no colon"):
        load_callable("my_partz", "twice", kind="model")


def test_the_fingerprint_is_that_of_the_code_that_runs(mine):
    began = fingerprint("my_parts", kind="method")
    mine.write_text(mine.read_text().replace("2 * x", "3 * x"))
    assert load_callable("my_parts", "twice", kind="method")(4) == 8
    assert fingerprint("my_parts", kind="method") == began
    sys.modules.pop("my_parts")
    assert fingerprint("my_parts", kind="method") == hashlib.sha256(mine.read_bytes()).hexdigest() != began


def test_a_module_without_a_file_has_an_empty_fingerprint(monkeypatch):
    typed = ModuleType("typed_in")
    typed.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "typed_in", typed)
    assert fingerprint("typed_in", kind="method") == ""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit(3)", "method module my_parts cannot be imported: SystemExit: 3."),
        ("raise RuntimeError('one\\ntwo.')", "method module my_parts cannot be imported: RuntimeError: one two."),
        ("from .beside import f", "method module my_parts cannot be imported: ImportError: attempted relative import"),
    ],
)
def test_whatever_a_file_does_when_it_is_imported_is_one_line(mine, code, message):
    mine.write_text(code)
    with pytest.raises(InvalidInput) as caught:
        load_callable("my_parts", "twice", kind="method")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("module", ["", ".my_parts", "./my_parts", "folder/my_parts"])
def test_a_path_is_no_module(module):
    with pytest.raises(InvalidInput, match="method module must be a name as in import, got"):
        load_callable(module, "twice", kind="method")


def test_what_own_code_prints_is_kept_from_the_output(mine, capsys):
    mine.write_text("print('hello')\ndef twice(x):\n    return 2 * x\n")
    load_callable("my_parts", "twice", kind="method")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "hello\n")


def test_own_code_at_work_finds_what_lies_beside_it(mine):
    before = list(sys.path)
    with own_code_at_work("it raised"):
        import my_parts
    assert my_parts.twice(2) == 4
    assert sys.path == before
