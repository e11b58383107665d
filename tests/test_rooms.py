"""The order of the rooms: who may import whom, read from the source with ast. docs/house.md shows the same order."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "calibrant"
# A room may import rooms with a smaller number, and of these only what their `__init__` exports.
# The files at number 0 are what all rooms share; they may import each other.
ROOMS = {
    **dict.fromkeys(("errors", "checks", "files", "npz", "lock", "distributed", "logs", "own_code", "display"), 0),
    **dict.fromkeys(("defaults", "gates", "executing"), 0),
    **dict.fromkeys(("predictions", "data", "models", "losses"), 1),
    **dict.fromkeys(("metrics", "posthoc", "pruning", "samples"), 2),
    **dict.fromkeys(("routing", "methods"), 3),
    "training": 4,
    **dict.fromkeys(("serving", "monitoring"), 5),
    "report": 6,
    **dict.fromkeys(("study", "sweep", "integrations"), 7),
    "cli": 8,
}


def wrong_imports(place: str, source: str, exports: dict[str, set[str]]) -> list[str]:
    """What a file may not import, as "room/file -> import".

    Args:
        place: The file below src/calibrant, as "metrics/smooth.py".
        source: Its text.
        exports: Room to the names that its `__init__` exports.
    """
    room = place.split("/", maxsplit=1)[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return []
    if room not in ROOMS:
        return [f"{place} -> a room without a number"]
    tree = ast.parse(source)
    whole: dict[str, str] = {}  # local name of a room that was imported as a whole
    found = []
    for node in ast.walk(tree):
        for module, name, local in _imported(node, place):
            if fault := _fault(room, module, name, exports):
                found.append(f"{place} -> {fault}")
            other = module.removeprefix("calibrant.") if name is None else name
            if module == "calibrant" or name is None:
                whole[local] = other
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            other = whole[node.value.id]
            if other != room and other in exports and node.attr not in exports[other]:
                found.append(f"{place} -> {other}.{node.attr}")
    return found


def _imported(node: ast.AST, place: str) -> list[tuple[str, str | None, str]]:
    """Module, name in it (None: the module itself) and local name of everything of ours that a node imports."""
    if isinstance(node, ast.Import):
        return [(a.name, None, a.asname or a.name) for a in node.names if a.name.split(".")[0] == "calibrant"]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level:
        parents = ["calibrant", *place.split("/")[:-1]]
        module = ".".join([*parents[: len(parents) - node.level + 1], *([module] if module else [])])
    if module.split(".")[0] != "calibrant":
        return []
    return [(module, a.name, a.asname or a.name) for a in node.names]


def _fault(room: str, module: str, name: str | None, exports: dict[str, set[str]]) -> str | None:
    """The import, where it is not allowed; None where it is."""
    shown = module if name is None else f"{module}:{name}"
    parts = module.split(".")[1:]
    if not parts:
        if name is None or name not in ROOMS:
            return None if name == "__version__" else shown
        parts, name = [name], None
    other = parts[0]
    if other == room or (ROOMS.get(room) == 0 and ROOMS.get(other) == 0):
        return None
    if ROOMS.get(other, 99) >= ROOMS[room] or len(parts) > 1:
        return shown
    if name is not None and (name not in exports[other] if other in exports else name.startswith("_")):
        return shown
    return None


def read_exports() -> dict[str, set[str]]:
    """Room to the names in its `__all__`; the single files of number 0 export what has no underscore."""
    exports: dict[str, set[str]] = {}
    for room in ROOMS:
        path = SOURCE / room / "__init__.py"
        if path.is_file():
            exports[room] = set()
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
                    exports[room] = set(ast.literal_eval(node.value))
    return exports


def test_rooms_import_only_what_the_rooms_below_them_export():
    exports = read_exports()
    found = [
        fault
        for path in sorted(SOURCE.rglob("*.py"))
        for fault in wrong_imports(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"), exports)
    ]
    assert found == []


def test_no_two_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("place", "source", "fault"),
    [
        ("metrics/a.py", "from calibrant.training import Run", "calibrant.training:Run"),
        ("metrics/a.py", "from calibrant.posthoc import Calibrator", "calibrant.posthoc:Calibrator"),
        (
            "metrics/a.py",
            "from calibrant.predictions.core import Predictions",
            "calibrant.predictions.core:Predictions",
        ),
        ("metrics/a.py", "from calibrant.predictions import _hidden", "calibrant.predictions:_hidden"),
        ("metrics/a.py", "from calibrant.predictions import core", "calibrant.predictions:core"),
        ("metrics/a.py", "from calibrant import routing", "calibrant:routing"),
        ("metrics/a.py", "from calibrant import evaluate", "calibrant:evaluate"),
        ("metrics/a.py", "import calibrant.cli", "calibrant.cli"),
        ("metrics/a.py", "from ..cli import app", "calibrant.cli:app"),
        ("metrics/a.py", "def f():\n    from calibrant.report import write_report", "calibrant.report:write_report"),
        ("metrics/a.py", "if TYPE_CHECKING:\n    from calibrant.training import Run", "calibrant.training:Run"),
        ("metrics/a.py", "from calibrant import predictions as p\np.hidden", "predictions.hidden"),
        ("metrics/a.py", "from calibrant.errors import _private", "calibrant.errors:_private"),
        ("metrics/a.py", "from calibrant.unheard import x", "calibrant.unheard:x"),
        ("errors.py", "from calibrant.predictions import Predictions", "calibrant.predictions:Predictions"),
        ("attic/a.py", "", "a room without a number"),
    ],
)
def test_wrong_import_is_found(place, source, fault):
    exports = {"predictions": {"Predictions"}, "training": {"Run"}, "posthoc": {"Calibrator"}, "routing": set()}
    exports |= {"report": {"write_report"}, "cli": {"app"}}
    assert wrong_imports(place, source, exports) == [f"{place} -> {fault}"]


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("metrics/a.py", "import numpy\nfrom calibrant.metrics.binning import Bins\nfrom .binning import Bins"),
        ("metrics/a.py", "from calibrant.predictions import Predictions\nfrom calibrant.errors import invalid"),
        ("metrics/a.py", "from calibrant import predictions\npredictions.Predictions"),
        ("files.py", "from calibrant.errors import invalid"),
        ("cli/a.py", "from calibrant import __version__"),
        ("__init__.py", "from calibrant.cli import anything"),
    ],
)
def test_right_import_is_left_alone(place, source):
    assert wrong_imports(place, source, {"predictions": {"Predictions"}}) == []


def test_map_shows_the_rooms_in_this_order():
    """docs/house.md has a row `| number | `room/` ...` for each room that exists, in this order."""
    text = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    shown = [(int(number), room) for number, room in re.findall(r"^\| (\d) \| `(\w+)/`", text, flags=re.MULTILINE)]
    there = [(number, room) for room, number in ROOMS.items() if (SOURCE / room / "__init__.py").is_file()]
    assert shown == sorted(shown, key=lambda row: row[0])
    assert sorted(shown) == sorted(there)
