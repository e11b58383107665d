"""A figure that a notebook shows as a picture. A module of its own: it needs matplotlib, which is loaded late."""

from matplotlib.figure import Figure

from calibrant.report.style import png_bytes


class NotebookFigure(Figure):
    """A figure that shows itself in a notebook although pyplot does not know of it."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)
