"""The site: built strictly, no link broken, every public name has an entry, nothing is asked of another server."""

import importlib
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import calibrant

ROOT = Path(__file__).parent.parent


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.names, self.links, self.loaded = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.names |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag in ("img", "script", "link", "iframe"):
            self.loaded += [attributes[key] for key in ("src", "href") if attributes.get(key)]


def test_the_site_builds_without_a_broken_link_and_has_every_public_name(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    # One test for all: the build takes most of its time. With --quiet it would not count the warnings.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: Page(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 40
    assert broken_links(pages, tmp_path) == []
    loaded = {link for page in pages.values() for link in page.loaded if re.match(r"(\w+:)?//", link)}
    assert loaded == set()
    assert [path.name for path in pages if "|---" in path.read_text(encoding="utf-8")] == []  # a table that is none
    assert public_names() - entries(tmp_path / "objects.inv") == set()


def broken_links(pages, root):
    found = []
    for path, page in pages.items():
        for link in {*page.links, *page.loaded}:
            place, _, anchor = unquote(link).partition("#")
            # Those of 404.html start at the root of a server; __skip is filled in by Material's script.
            if re.match(r"\w+:|//", link) or path.name == "404.html" or anchor == "__skip":
                continue
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].names):
                found.append(f"{path.relative_to(root)}: {link}")
    return sorted(found)


def public_names():
    packages = [path.parent.name for path in (ROOT / "src" / "calibrant").glob("*/__init__.py")]
    names = {f"calibrant.{name}" for name in calibrant.__all__ if not name.startswith("__")}
    for package in packages:
        module = importlib.import_module(f"calibrant.{package}")
        names |= {f"calibrant.{package}.{name}" for name in getattr(module, "__all__", ())}
    assert len(names) > 150
    return names


def entries(inventory):
    """Names in the inventory that mkdocstrings writes, in Sphinx's format: four lines, then compressed ones."""
    lines = zlib.decompress(inventory.read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines}
