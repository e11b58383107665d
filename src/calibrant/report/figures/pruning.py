"""What pruning left out: kept share of each class over epochs, and the scores it decided by."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calibrant.errors import invalid
from calibrant.report.style import BLUE, INK, figure_with, legend_beside, line_style, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More lines than this cannot be told apart; then the spread over classes is drawn instead.
_LINES = 12


@styled
def kept_share(
    shares: ArrayLike, *, class_names: Sequence[str] | None = None, title: str = "", ax: "Axes | None" = None
) -> "Figure":
    """Share of each class that an epoch trained on.

    Up to twelve classes are drawn as lines; more as the band from the lowest to the highest class with its median.

    Args:
        shares: Shape (epochs, K), fractions of the class's samples; NaN for a class that has none.
        class_names: K names; 0..K-1 without.
        title: Text above; empty for none.
        ax: Axes to draw into; by default those of a new figure.
    """
    table = np.asarray(shares, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise invalid("shares", "have the shape (epochs, classes), neither of them 0", table.shape)
    names = [str(k) for k in range(table.shape[1])] if class_names is None else list(class_names)
    if len(names) != table.shape[1]:
        raise invalid("class_names", f"hold {table.shape[1]} names, one for each column of shares", len(names))
    epochs = np.arange(1, len(table) + 1)
    many = table.shape[1] > _LINES
    figure, axes = figure_with(ax, 6.4, 3.8)
    if many:
        axes.fill_between(
            epochs,
            np.nanmin(table, axis=1),
            np.nanmax(table, axis=1),
            step="mid",
            color=BLUE,
            alpha=0.25,
            linewidth=0,
            label=f"lowest to highest of {table.shape[1]} classes",
        )
        axes.step(epochs, np.nanmedian(table, axis=1), where="mid", color=INK, linewidth=1.8, label="median class")
        axes.legend(loc="lower left")
    else:
        for index, name in enumerate(names):
            axes.step(epochs, table[:, index], where="mid", label=name, **line_style(index))
        legend_beside(figure, ax, title="Class")
    percent_axis(axes.yaxis)
    axes.set(ylim=(0, 1.03), xlabel="Epoch", ylabel="Share of the class trained on")
    axes.set_title(title)
    return figure


@styled
def score_distributions(
    scores: Mapping[str, ArrayLike], *, n_bins: int = 40, title: str = "", ax: "Axes | None" = None
) -> "Figure":
    """Distributions of the EMA confidence scores, for groups of samples or for epochs.

    Args:
        scores: Group name to scores in [0, 1], any length; for example kept and pruned samples, or epochs 10, 50, 100.
        n_bins: Bins on [0, 1].
        title: Text above; empty for none.
        ax: Axes to draw into; by default those of a new figure.
    """
    if not scores:
        raise invalid("scores", "hold at least one group", "an empty mapping")
    figure, axes = figure_with(ax, 6.0, 3.8)
    edges = np.linspace(0, 1, n_bins + 1)
    for index, (name, values) in enumerate(scores.items()):
        array = np.asarray(values, dtype=np.float64).ravel()
        count = np.histogram(array, edges)[0]
        style = line_style(index)
        share = count / max(array.size, 1)
        axes.stairs(share, edges, label=f"{name} ({array.size:,})", **style)
        axes.stairs(share, edges, fill=True, alpha=0.12, color=style["color"])
    percent_axis(axes.yaxis)
    axes.set(xlim=(0, 1), xlabel="EMA of the confidence", ylabel="Share of the group")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend(loc="upper left")
    return figure
