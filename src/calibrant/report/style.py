"""How every figure looks, and how it is saved so that the same data give the same bytes."""

import io
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from calibrant.errors import importing, invalid
from calibrant.files import as_path, atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which is distinct with every common kind of colour blindness; their yellow is left out (it
# vanishes on white), and black is kept for reference lines.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
GREY = "#6b7280"
INK = "#1f2937"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
# The same hues, lighter, for lines on a dark background.
DARK_PALETTE = ("#5ab4ea", "#ff8f5a", "#2fc79a", "#e39bc4", "#f0b840", "#a9d8f6")
# After the sixth line the colours repeat with the next dash, so colour is never the only difference.
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")

# Any: the stubs name every key as a literal, and that type is private to them.
_RC: Any = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same glyphs on every machine
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "hatch.linewidth": 0.6,
    # Names are text: a dollar sign in a name does not start a formula.
    "text.parse_math": False,
}
_SAVE_RC: Any = {"svg.hashsalt": "calibrant", "svg.fonttype": "path"}

_Arguments = ParamSpec("_Arguments")


def styled(draw: "Callable[_Arguments, Figure]") -> "Callable[_Arguments, Figure]":
    """Run a drawing function with our style, without touching the user's matplotlib settings."""

    @wraps(draw)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> "Figure":
        with importing("a figure", "matplotlib", "figures"):
            from matplotlib import rc_context

        with rc_context(_RC):
            return draw(*args, **kwargs)

    return wrapper


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in inches that pyplot does not know; a notebook shows it as a picture."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            return png_bytes(self)

    return NotebookFigure(figsize=(width, height), layout="constrained")


def panels_with(
    ax: "Axes | None", width: float, height: float, ratios: Sequence[float] = (1,)
) -> "tuple[Figure, list[Axes]]":
    """The user's axes with their figure, or panels below each other in a new figure in inches."""
    if ax is not None:
        return cast("Figure", ax.figure), [ax]
    figure = new_figure(width, height)
    return figure, list(figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios).flat)


def line_style(index: int) -> dict[str, Any]:
    """Colour and dash of the `index`-th line; distinct for the first thirty."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[(index // len(PALETTE)) % len(DASHES)],
        "linewidth": 1.8,
    }


def percent_axis(axis: "Axis") -> None:
    """Label an axis of fractions in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def save_figure(figure: "Figure", stem: str | Path) -> tuple[Path, Path]:
    """Write `stem.svg` and `stem.png`; the same figure gives the same bytes.

    Args:
        figure: Returned by one of the drawing functions of `calibrant.report`.
        stem: Path without an ending; missing folders are created.
    """
    from matplotlib import rc_context

    base = as_path(stem, "stem")
    if base.suffix.lower() in {".svg", ".png"}:
        raise invalid("stem", "have no ending", base.name, f"Both endings are added: pass {base.stem!r}.")
    svg, png = base.with_name(base.name + ".svg"), base.with_name(base.name + ".png")
    with rc_context({**_RC, **_SAVE_RC}), atomic_write(svg) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
    with atomic_write(png) as temporary:
        Path(temporary).write_bytes(png_bytes(figure))
    return svg, png


def png_bytes(figure: "Figure") -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({**_RC, **_SAVE_RC}):
        figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()
