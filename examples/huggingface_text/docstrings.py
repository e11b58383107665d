"""Real text that every installation has: which library does a sentence of documentation come from?"""

import ast
import random
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ["numpy", "scipy", "sklearn", "torch"]


def sentences_of(library: str, most: int) -> list[str]:
    """First paragraphs of docstrings, from randomly chosen files of the library; no library is imported."""
    root = Path(find_spec(library).origin).parent
    files = sorted(path for path in root.rglob("*.py") if "test" not in str(path.relative_to(root)))
    random.Random(0).shuffle(files)
    found: dict[str, None] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                first = " ".join(text.split("\n\n")[0].split())
                if 5 <= len(first.split()) <= 40:
                    found[first] = None
        if len(found) >= most:
            break
    return list(found)[:most]


def load(most: int = 900) -> tuple[list[str], list[int]]:
    """Sentences in a random order, and the number of the library of each."""
    rows = [(text, label) for label, name in enumerate(LIBRARIES) for text in sentences_of(name, most)]
    random.Random(0).shuffle(rows)
    texts, labels = zip(*rows, strict=True)
    return list(texts), list(labels)
