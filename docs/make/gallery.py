"""Runs the blocks of docs/gallery.md and saves each `figure` under the name of the picture that follows its block."""

import re
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
_STEP = re.compile(r"```python\n(?P<code>.*?)```|!\[[^\]]*\]\((?P<picture>gallery/[^)]+)\)", re.DOTALL)


def pictures():
    """Yields the path of each picture and the figure that its code makes."""
    names = {}
    for step in _STEP.finditer((DOCS / "gallery.md").read_text()):
        if step["code"]:
            names.pop("figure", None)
            exec(step["code"], names)
        else:
            figure = names["figure"]
            assert isinstance(figure, Figure), step["picture"]
            yield DOCS / step["picture"], figure


def main():
    (DOCS / "gallery").mkdir(exist_ok=True)
    for path, figure in pictures():
        figure.savefig(path, dpi=100)
        # 64 colours are enough for flat areas and text, at a third of the size.
        Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
        print(f"wrote docs/{path.relative_to(DOCS)}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
