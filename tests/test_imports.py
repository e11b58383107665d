"""The judging half imports neither the training half nor, at module level, torch. docs/design.md states both rules."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "calibrant"
TRAINING = {"losses", "pruning", "training", "studies", "integrations"}
# These put the halves together.
FREE = {"cli", "demonstration.py", "__init__.py", "__main__.py"}


def violations(place: str, source: str) -> list[str]:
    """Every forbidden import of a file below src/calibrant, as "place:line module"."""
    if Path(place).parts[0] in TRAINING | FREE:
        return []
    tree = ast.parse(source)
    anywhere = [(node, module) for node in ast.walk(tree) for module in imported(node, place)]
    on_import = [(node, module) for node in module_level(tree) for module in imported(node, place)]
    found = [pair for pair in anywhere if pair[1].startswith(tuple(f"calibrant.{name}" for name in TRAINING))]
    found += [pair for pair in on_import if pair[1].split(".")[0] == "torch"]
    return [f"{place}:{node.lineno} {module}" for node, module in found]


def imported(node: ast.AST, place: str) -> list[str]:
    """Full names of the modules that a node imports; `from a import b` counts as "a.b"."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = ["calibrant", *Path(place).parts[:-1]]
        base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
    return [f"{base}.{alias.name}" for alias in node.names]


def module_level(tree: ast.Module) -> list[ast.stmt]:
    """Statements that run on import, also inside `if`, `try` and classes, but not under `if TYPE_CHECKING`."""
    statements, waiting = [], list(tree.body)
    while waiting:
        statement = waiting.pop()
        statements.append(statement)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            waiting += statement.orelse
            continue
        waiting += [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        handlers = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.ExceptHandler)]
        waiting += [child for handler in handlers for child in handler.body]
    return statements


def test_the_judging_half_stands_alone():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        found += violations(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("place", "source", "module"),
    [
        ("metrics/a.py", "import torch", "torch"),
        ("metrics/a.py", "try:\n    from torch import nn\nexcept ImportError:\n    pass", "torch.nn"),
        ("files.py", "class A:\n    import torch.nn", "torch.nn"),
        ("metrics/a.py", "def f():\n    from calibrant.training import Run", "calibrant.training.Run"),
        ("metrics/a.py", "from calibrant import losses", "calibrant.losses"),
        ("report/a.py", "import calibrant.pruning.audit", "calibrant.pruning.audit"),
        ("report/a.py", "from ..studies import compare", "calibrant.studies.compare"),
        ("report/a.py", "if TYPE_CHECKING:\n    from calibrant.training import Run", "calibrant.training.Run"),
    ],
)
def test_a_planted_violation_is_found(place, source, module):
    assert [fault.split()[1] for fault in violations(place, source)] == [module]


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("metrics/a.py", "def f():\n    import torch"),
        ("metrics/a.py", "class A:\n    def f(self):\n        import torch"),
        ("metrics/a.py", "if TYPE_CHECKING:\n    import torch\nfrom calibrant.predictions import Predictions"),
        ("training/a.py", "import torch\nfrom calibrant.losses import Brier"),
        ("cli/a.py", "from calibrant.training import train"),
    ],
)
def test_a_right_import_is_left_alone(place, source):
    assert violations(place, source) == []
