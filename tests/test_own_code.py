"""`module:name` from the working directory; what is refused is in models/test_external.py and methods/test_own.py."""

import hashlib
import os
import py_compile
import sys
from types import ModuleType

import pytest

from calibrant import own_code
from calibrant.errors import InvalidInput
from calibrant.own_code import (
    digest,
    is_own,
    load,
    own_code_at_work,
    remember,
    require,
    trust,
    trust_named,
    unexpected,
)

CODE = "def twice(x):\n    return 2 * x\n"
EVIL = "from pathlib import Path\nPath('it_ran').touch()\n"


@pytest.fixture
def mine(own_module):
    return own_module("my_parts", CODE)


def test_a_function_is_found_and_the_path_left_as_it_was(mine):
    before = list(sys.path)
    assert load("my_parts:twice")(4) == 8
    assert sys.path == before


def test_an_error_in_it_is_not_called_a_fault_of_ours(own_module):
    path = own_module("my_parts", "def half(x):\n    return x / 0\n\n\ndef call(function):\n    return function()\n")
    half, call = load("my_parts:half"), load("my_parts:call")
    with pytest.raises(ZeroDivisionError) as caught:
        half(1)
    message, code = unexpected(caught.value)
    assert code == 2
    assert message.startswith(f"{path}, line 2, raised ZeroDivisionError: division by zero.")
    with pytest.raises(AttributeError) as caught:
        call(lambda: digest(None))  # our own function fails below theirs
    message, code = unexpected(caught.value)
    assert code == 70
    assert "this is a fault of calibrant" in message


@pytest.mark.parametrize("name", ["nll", "flsd+h", "torchvision:resnet18", "tiny"])
def test_what_comes_with_libraries_is_not_own_code(name):
    assert not is_own(name)


def test_the_message_says_what_it_was_for(mine):
    with pytest.raises(
        InvalidInput, match=r"method my_parts:thrice must name a function or class in .*my_parts\.py, got"
    ):
        load("my_parts:thrice", kind="method")
    with pytest.raises(InvalidInput, match="A known one has no colon"):
        load("my_partz:twice", kind="model")


# Finding and digesting.


def test_the_digest_is_that_of_the_file_and_finding_it_runs_nothing(own_module, tmp_path):
    path = own_module("my_evil", EVIL, trusted=False)
    assert digest("my_evil:anything") == hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest("sys:exit") == ""
    assert not (tmp_path / "it_ran").exists()
    assert "my_evil" not in sys.modules


def test_finding_a_module_of_a_package_imports_no_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_package" / "deep").mkdir(parents=True)
    files = {
        "my_package": "__init__.py",
        "my_package.deep": "deep/__init__.py",
        "my_package.deep.inner": "deep/inner.py",
    }
    for module, file in files.items():
        (tmp_path / "my_package" / file).write_text(f"{EVIL}# {module}\n")
    for module, file in files.items():
        content = (tmp_path / "my_package" / file).read_bytes()
        assert digest(f"{module}:f") == hashlib.sha256(content).hexdigest()
    for missing in ("my_package.missing:f", "my_package.deep.inner.further:f"):
        with pytest.raises(InvalidInput, match="module must be importable"):
            digest(missing)
    assert not (tmp_path / "it_ran").exists()


def test_the_digest_is_that_of_the_code_that_runs(mine):
    load("my_parts:twice")
    began = digest("my_parts:twice")
    mine.write_text(mine.read_text().replace("2 * x", "3 * x"))
    assert load("my_parts:twice")(4) == 8
    assert digest("my_parts:twice") == began
    sys.modules.pop("my_parts")
    assert digest("my_parts:twice") == hashlib.sha256(mine.read_bytes()).hexdigest() != began


def test_a_module_without_a_file_has_an_empty_digest(monkeypatch):
    typed = ModuleType("typed_in")
    typed.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "typed_in", typed)
    assert digest("typed_in:f") == ""


# Trusting.


def test_code_that_nobody_vouched_for_is_not_imported(own_module, tmp_path):
    own_module("my_evil", EVIL, trusted=False)
    for refused in (require, load):
        with pytest.raises(InvalidInput, match=r"your own my_evil must be code that you trust .*--trust-code"):
            refused("my_evil:anything")
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.parametrize("name", ["os:abort", "sys:exit", "subprocess:run", "calibrant.files:write_text"])
def test_modules_that_are_there_anyway_are_not_trusted_either(name):
    with pytest.raises(InvalidInput, match="must be code that you trust"):
        load(name)


def test_another_digest_than_the_recorded_one_is_not_imported_even_when_trusted(own_module, tmp_path):
    own_module("my_evil", EVIL)
    with pytest.raises(InvalidInput, match=r"your own my_evil must be the file with SHA-256 0{12}\.\.\., got the file"):
        load("my_evil:anything", expected="0" * 64, trusted=True)
    assert not (tmp_path / "it_ran").exists()


def test_vouching_once_is_remembered_for_that_content_alone(own_module, monkeypatch):
    own_module("my_new", CODE + "# new\n", trusted=False)
    assert load("my_new:twice", trusted=True)(2) == 4
    monkeypatch.setattr(own_code, "_trusted", set())  # as in the next process
    own_module("my_new", CODE + "# new\n", trusted=False)
    assert load("my_new:twice")(2) == 4
    own_module("my_new", CODE + "# edited\n", trusted=False)
    with pytest.raises(InvalidInput, match="trust"):
        load("my_new:twice")


def test_naming_is_trust(own_module):
    own_module("my_named", CODE + "# named\n", trusted=False)
    trust_named(None, "flsd+h", "my_named:twice+h")
    assert load("my_named:twice")(3) == 6


def test_code_without_a_file_is_trusted_in_this_process_only(monkeypatch, state_folder):
    typed = ModuleType("typed_in")
    typed.twice = lambda x: 2 * x
    monkeypatch.setitem(sys.modules, "typed_in", typed)
    trust("typed_in:twice")
    assert load("typed_in:twice")(2) == 4
    monkeypatch.setattr(own_code, "_trusted", set())
    with pytest.raises(InvalidInput, match="code without a file"):
        load("typed_in:twice")


def test_a_store_that_cannot_be_written_or_read_is_no_fault(tmp_path, monkeypatch, own_module):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CALIBRANT_STATE", str(tmp_path / "file" / "inside"))
    own_module("my_unstored", CODE + "# unstored\n")
    trust("my_unstored:twice")
    assert load("my_unstored:twice")(2) == 4


def test_what_is_no_digest_is_neither_stored_nor_read(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRANT_STATE", str(tmp_path))
    for text in ("", "abc", "A" * 64, "../" * 30):
        remember("mine", text)
    for name in ("", "two words", "a..b", "line\nend"):
        remember(name, "a" * 64)
    assert not (tmp_path / "trusted_code.txt").exists()
    lines = [b"\xff\xfe", b"a" * 63 + b" mine", b"d" * 64, b"b" * 64 + b" mine", b""]
    (tmp_path / "trusted_code.txt").write_bytes(b"\n".join(lines))
    remember("pkg.mine", "c" * 64)
    assert own_code._remembered() == {("mine", "b" * 64), ("pkg.mine", "c" * 64)}


def test_trust_is_of_a_name_and_a_content_together(own_module, tmp_path):
    """A recipe may name trusted bytes inside a package, whose own code is then run first."""
    own_module("my_known", CODE)
    (tmp_path / "my_pack").mkdir()
    (tmp_path / "my_pack" / "__init__.py").write_text(EVIL)
    (tmp_path / "my_pack" / "net.py").write_text(CODE)
    own_module("my_other", CODE, trusted=False)
    assert load("my_known:twice")(2) == 4
    for name, refused in (("my_pack.net:twice", "my_pack"), ("my_other:twice", "my_other")):
        with pytest.raises(InvalidInput, match=f"your own {refused} must be code that you trust"):
            load(name)
    assert not (tmp_path / "it_ran").exists()


def test_a_package_that_was_edited_is_asked_about_again(tmp_path, monkeypatch, own_module):
    own_module("my_known", CODE)
    folder = tmp_path / "my_pack" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "my_pack" / "__init__.py").write_text("factor = 3\n")
    (folder / "__init__.py").write_text("from my_pack import factor\n")
    (folder / "inner.py").write_text("import my_pack.deep\ndef thrice(x):\n    return my_pack.deep.factor * x\n")
    name = "my_pack.deep.inner:thrice"

    def as_in_the_next_process():
        monkeypatch.setattr(own_code, "_trusted", set())
        for module in ("my_pack", "my_pack.deep", "my_pack.deep.inner"):
            sys.modules.pop(module, None)

    assert load(name, trusted=True)(2) == 6
    as_in_the_next_process()
    assert load(name)(2) == 6
    as_in_the_next_process()
    (tmp_path / "my_pack" / "__init__.py").write_text(EVIL + "factor = 4\n")
    with pytest.raises(InvalidInput, match="your own my_pack must be code that you trust"):
        load(name)
    assert not (tmp_path / "it_ran").exists()


def test_a_stored_pyc_is_not_run_in_place_of_the_source(mine, tmp_path):
    (tmp_path / "other.py").write_text(EVIL + CODE)
    cached = tmp_path / "__pycache__" / f"my_parts.{sys.implementation.cache_tag}.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "other.py"), str(cached), invalidation_mode=unchecked)
    assert load("my_parts:twice")(4) == 8
    assert not (tmp_path / "it_ran").exists()


def test_a_file_that_changes_while_it_is_imported_is_refused(mine):
    with pytest.raises(ImportError, match="was changed"):
        own_code._import("my_parts", "0" * 64)
    assert "my_parts" not in sys.modules


def test_a_module_of_a_package_is_loaded_with_its_package(tmp_path, monkeypatch, own_module):
    (tmp_path / "my_pack").mkdir()
    (tmp_path / "my_pack" / "__init__.py").write_text("factor = 3\n")
    (tmp_path / "my_pack" / "inner.py").write_text("from . import factor\ndef thrice(x):\n    return factor * x\n")
    assert load("my_pack.inner:thrice", trusted=True)(2) == 6


def test_a_folder_without_code_of_its_own_needs_no_trust(tmp_path, own_module):
    own_module("my_known", CODE)
    (tmp_path / "my_folder").mkdir()
    (tmp_path / "my_folder" / "inner.py").write_text(CODE)
    remember("my_folder.inner", digest("my_folder.inner"))
    assert load("my_folder.inner:twice")(2) == 4


# What own code does when it runs.


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit(3)", "method module my_parts cannot be imported: SystemExit: 3."),
        ("raise RuntimeError('one\\ntwo.')", "method module my_parts cannot be imported: RuntimeError: one two."),
        ("from .beside import f", "method module my_parts cannot be imported: ImportError: attempted relative import"),
    ],
)
def test_whatever_a_file_does_when_it_is_imported_is_one_line(own_module, code, message):
    own_module("my_parts", code)
    with pytest.raises(InvalidInput) as caught:
        load("my_parts:twice", kind="method")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("module", ["", ".my_parts", "./my_parts", "folder/my_parts"])
def test_a_path_is_no_module(module):
    with pytest.raises(InvalidInput, match="module must be a name as in import, got"):
        load(f"{module}:twice")


def test_what_own_code_prints_is_kept_from_the_output(own_module, capsys):
    own_module("my_parts", "print('hello')\n" + CODE)
    load("my_parts:twice")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "hello\n")


def test_own_code_at_work_finds_what_lies_beside_it(mine):
    before = list(sys.path)
    with own_code_at_work("it raised"):
        import my_parts
    assert my_parts.twice(2) == 4
    assert sys.path == before


def test_the_state_of_this_user_is_not_touched_by_tests(state_folder):
    assert own_code._store().parent == state_folder
    assert os.environ["CALIBRANT_STATE"] == str(state_folder)
