"""More than one model can show: a table and a picture that stand on the page below the comparison."""

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrant.report.style import png_bytes
from calibrant.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        grid: A table; its caption stands above it.
        figure: A picture above the table, or None.
        described: What the picture shows, for those who cannot see it.
    """

    title: str
    grid: Table
    figure: "Figure | None" = None
    described: str = ""

    @property
    def picture(self) -> str:
        """The figure inside an address; empty without one."""
        if self.figure is None:
            return ""
        return "data:image/png;base64," + base64.b64encode(png_bytes(self.figure)).decode("ascii")
