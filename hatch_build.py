"""What hatchling runs while it builds the package.

The description on a package index is README.md with absolute links, because an index has none of our files. Links point
to the tag of the version in the repository that `project.urls` of pyproject.toml names. As long as it names none,
pictures are left out and links to files become plain text.

Plotly's script is copied beside the templates of the page. The Python package around it takes 64 MB and is not needed.
"""

import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling while it collects the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        root = Path(self.root)
        (version,) = re.findall(r'__version__ = "(.+)"', (root / "src/calibrant/__init__.py").read_text())
        text = with_absolute_links(
            (root / "README.md").read_text(), metadata.get("urls", {}).get("Repository"), version
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class PlotlyHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it builds a wheel or installs the clone as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Copy the script into the package."""
        script = resources.files("plotly").joinpath("package_data", "plotly.min.js")
        with resources.as_file(script) as source:
            shutil.copyfile(source, Path(self.root) / "src/calibrant/report/assets/plotly.min.js")


def with_absolute_links(text: str, repository: str | None, version: str) -> str:
    """The text with links that work from anywhere.

    Args:
        text: Markdown.
        repository: Address of the repository on the web; None for none.
        version: Its tag is "v" and this.
    """

    def link(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if repository is None:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/v{version}/{target})"

    return _LINK.sub(link, text)
