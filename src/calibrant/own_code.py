"""Find, trust and import a user's own code, named `module:name`: a network, a method, data.

A file from somebody else (a run, a study, a record) may name any module. Finding and hashing a module runs nothing.
Only `load` imports, and only code that this user trusts: it was named on the command line or used with `trust_code`
before. A small file remembers the name and the SHA-256 of each trusted module and of the packages around it, whose
`__init__.py` is run first.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from calibrant.errors import CalibrantError, InvalidInput, did_you_mean, invalid, one_line, our_fault
from calibrant.files import sha256_of

# Names with these words before the colon belong to installed libraries.
_LIBRARIES = ("torchvision", "timm")
# A line of the store. Code without a file has no digest, and is trusted in one process only.
_LINE = re.compile(r"^([0-9a-f]{64}) ([\w-]+(?:\.[\w-]+)*)$", re.MULTILINE)
_LONGEST_STORE = 10_000_000

_digests: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
_trusted: set[tuple[str, str]] = set()


def is_own(name: str) -> bool:
    """Whether a method or network is the user's own code.

    >>> is_own("nll+mine:Plan"), is_own("flsd+h"), is_own("torchvision:resnet18")
    (True, False, False)
    """
    return bool(own_parts(name))


def own_parts(name: str) -> tuple[str, ...]:
    """Return the parts of a method or network that are the user's own code, each `module:attribute`.

    >>> own_parts("mine:Hinge+h+theirs:Plan")
    ('mine:Hinge', 'theirs:Plan')
    """
    return tuple(part for part in name.split("+") if ":" in part and _module_of(part) not in _LIBRARIES)


# Finding: nothing here imports anything.


def digest(name: str) -> str:
    """Return the SHA-256 of the module's file, so that a run can tell whether its code has changed.

    If the module is imported already, it is that of the file as it was then. Only that file counts, not what it imports
    in turn. Empty if there is no file, as in a notebook.
    """
    module = _module_of(name)
    loaded = sys.modules.get(module)
    if loaded is not None and loaded in _digests:
        return _digests[loaded]
    path = getattr(loaded, "__file__", None)
    if loaded is None:
        spec = _find(module)
        if spec is None:
            hint = "A known one has no colon; your own needs a module that Python can find from this folder."
            raise invalid("module", "be importable", repr(module), hint)
        if spec.has_location:  # "built-in" is no path
            path = spec.origin
    if not path or not Path(path).is_file():
        return ""
    return sha256_of(path)


def _module_of(name: str) -> str:
    module = name.partition(":")[0]
    if not module or module.startswith(".") or "/" in module:
        raise invalid("module", "be a name as in import", repr(module), "For mine.py: mine:function.")
    return module


def _find(module: str) -> ModuleSpec | None:
    """Find what importing a module would run, one part at a time: `importlib.util.find_spec` imports the packages."""
    # The user's file usually lies in the working directory; an installed console script does not look there by itself.
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    for name in _with_packages(module):
        spec = None
        for finder in sys.meta_path:
            # Other finders, such as those of editable installs, know their own places.
            asked = places if finder is PathFinder or "." in name else None
            spec = spec or finder.find_spec(name, asked)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec


def _with_packages(module: str) -> list[str]:
    """Return the names of the packages around a module, then its own."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


# Trusting.


def trust(name: str) -> None:
    """Allow the module of `name`, as it is now, to be imported."""
    _trust(_modules_run_by(name))


def _trust(modules: list[tuple[str, str]]) -> None:
    _trusted.update(modules)
    for module, content in modules:
        remember(module, content)


def remember(module: str, content: str) -> None:
    """Note in the user's state folder that this module with this digest is trusted, if that can be written."""
    line = f"{content} {module}"
    if not _LINE.fullmatch(line) or (module, content) in _remembered():
        return
    with contextlib.suppress(OSError):
        path = _store()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as handle:
            # One short write at the end of a file: the system does not mix it with another process's.
            handle.write(f"{line}\n")


def _modules_run_by(name: str) -> list[tuple[str, str]]:
    """Name and digest of each module that importing this one runs: the packages around it, then itself."""
    *packages, own = _with_packages(_module_of(name))
    modules = []
    for package in packages:
        spec = None if package in sys.modules else _find(package)
        if spec is None or spec.origin is not None:  # a folder without __init__.py runs nothing
            modules.append((package, digest(package)))
    return [*modules, (own, digest(own))]


def trust_named(*names: object) -> None:
    """`trust` each name of the user's own code: what a user types is trusted, what a file says is not."""
    for name in names:
        if isinstance(name, str):
            for part in own_parts(name):
                trust(part)


def require(name: str, *, expected: str | None = None, trusted: bool = False) -> list[tuple[str, str]]:
    """Refuse own code that is not the recorded one, or that this user does not trust yet.

    Args:
        name: `module:attribute`.
        expected: The digest that the module must have.
        trusted: Whether the user vouches for it now; this is remembered.

    Returns:
        Name and digest of each module that may now be run, the packages around it first.
    """
    modules = _modules_run_by(name)
    module, content = modules[-1]
    if expected is not None and content != expected:
        hint = "Bring that code back, or begin a new run."
        raise invalid(f"your own {module}", f"be {in_words(expected)}", in_words(content), hint)
    if trusted:
        _trust(modules)
    known = _trusted | _remembered()
    for module, content in modules:
        if (module, content) not in known:
            raise invalid(
                f"your own {module}",
                "be code that you trust before it is run",
                f"{in_words(content)}, which you have not used under this name on this machine",
                "Read it, then say --trust-code (in Python trust_code=True, or calibrant.own_code.trust).",
            )
    return modules


def in_words(content: str) -> str:
    """Describe a digest for a message."""
    if not content:
        return "code without a file, such as a notebook's"
    return f"the file with SHA-256 {content[:12]}..."


def _store() -> Path:
    folder = os.environ.get("CALIBRANT_STATE")
    if folder:
        return Path(folder) / "trusted_code.txt"
    import platformdirs

    return platformdirs.user_state_path("calibrant") / "trusted_code.txt"


def _remembered() -> set[tuple[str, str]]:
    """Name and digest of each module that was trusted."""
    try:
        with _store().open(encoding="utf-8", errors="replace") as handle:
            return {(name, content) for content, name in _LINE.findall(handle.read(_LONGEST_STORE))}
    except OSError:
        return set()


# Importing and calling.


def load(name: str, *, kind: str = "code", expected: str | None = None, trusted: bool = False) -> Callable[..., Any]:
    """Import the function or class `module:attribute`; `require` is asked first, and `kind` is for messages.

    Python must be able to find the module from here; the working directory counts.
    """
    module, _, attribute = name.partition(":")
    modules = require(name, expected=expected, trusted=trusted)
    with own_code_at_work(f"{kind} module {module} cannot be imported:"):
        for part, content in modules:
            imported = _import(part, content)
    function: Callable[..., Any] | None = getattr(imported, attribute, None)
    if function is None or not callable(function):
        # Which file, because another module may have the same name: a random.py of yours is not the one Python takes.
        where = getattr(imported, "__file__", None) or module
        hint = did_you_mean(attribute, [name for name, value in vars(imported).items() if callable(value)])
        raise invalid(f"{kind} {module}:{attribute}", f"name a function or class in {where}", repr(attribute), hint)
    return function


@contextlib.contextmanager
def own_code_at_work(doing: str) -> Iterator[None]:
    """Wrap calls of the user's code: it can import modules of the working directory, and its errors become one line.

    What it prints goes to standard error, because standard output may be JSON that a program reads.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except CalibrantError:
        raise
    except (Exception, SystemExit) as error:  # a file may be a script that ends itself
        message = " ".join(str(error).split()).removesuffix(".")
        raise InvalidInput(f"{doing} {type(error).__name__}: {message}.") from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _import(module: str, expected: str) -> ModuleType:
    """Import a module whose file has the expected digest."""
    if module in sys.modules:
        return sys.modules[module]
    parent, _, name = module.rpartition(".")
    if parent:
        importlib.import_module(parent)
    spec = _find(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(tuple(SOURCE_SUFFIXES)):
        return importlib.import_module(module)
    # Python's own loader would read the file again, or run a stored .pyc in its place.
    source = Path(spec.origin).read_bytes()
    if hashlib.sha256(source).hexdigest() != expected:
        raise ImportError(f"{module} was changed while it was being imported")
    imported = importlib.util.module_from_spec(spec)
    sys.modules[module] = imported
    try:
        exec(compile(source, spec.origin, "exec", dont_inherit=True), vars(imported))  # noqa: S102 (it is trusted)
    except BaseException:
        sys.modules.pop(module, None)
        raise
    _digests[imported] = expected
    if parent:
        setattr(sys.modules[parent], name, imported)
    return imported


def unexpected(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code of an error that nobody foresaw: 2 if the user's code raised it, else 70."""
    own_files = {str(module.__file__) for module in _digests}
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.filename in own_files:
            raised = f"{type(error).__name__}: {one_line(error, most=150)}".rstrip(":. ")
            return f"{frame.filename}, line {frame.lineno}, raised {raised}. CALIBRANT_DEBUG=1 shows the traceback.", 2
        if f"{os.sep}calibrant{os.sep}" in frame.filename:
            break
    return our_fault(error), 70
