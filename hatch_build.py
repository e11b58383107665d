"""The description on a package index: README.md with absolute links, because an index has none of our files.

Links point to the tag of the version in the repository that `project.urls` of pyproject.toml names. As long as it names
none, pictures are left out and links to files become plain text.
"""

import re
from pathlib import Path
from typing import Any

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
