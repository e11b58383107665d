"""What MkDocs does not do by itself: pages from the root of the repository, links out of docs/, and formulas."""

import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository's root that are pages of the site, too.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
PAGES["results/README.md"] = "measured.md"
# Pages that begin with a wide table: it takes the place of their list of headings.
WIDE = ("README.md", "results.md", "paper.md")
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_files(files, config):
    """Add the pages of the root."""
    for source, target in PAGES.items():
        text = _links((ROOT / source).read_text(), source, target)
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Links that are right in the repository are made right on the site."""
    if page.file.generated_by:
        return markdown
    path = page.file.src_uri
    if path in WIDE:
        page.meta["hide"] = ["toc"]
    if path.startswith("api/"):
        page.meta["search"] = {"boost": 0.3}  # a guide explains a word better than an attribute of that name
    return _links(markdown, f"docs/{path}", path)


def on_page_content(html, **_):
    """Formulas as MathML: browsers show it by themselves, without a script or a font from another server."""
    return _FORMULA.sub(lambda found: _formula(found[2], block=found[1] == "div"), html)


def _links(text, source, target):
    def change(found):
        words, link, anchor = found[1], found[2], found[3] or ""
        if "://" in link or link.startswith("mailto:"):
            return found[0]
        # Where the link leads, as a path from the repository's root.
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if place in PAGES:
            place = PAGES[place]
        elif place.startswith("docs/") and source.startswith("docs/"):
            return found[0]
        elif place.startswith("docs/"):
            place = place.removeprefix("docs/")
        elif (ROOT / place).exists():
            # Code and tables of the repository are not on the site: their path is said instead.
            name = words.strip("`")
            return f"`{place}`" if name in place else f"{words} (`{place}`)"
        else:
            return found[0]  # the strict build names it
        return f"[{words}]({posixpath.relpath(place, posixpath.dirname(target) or '.')}{anchor})"

    return _LINK.sub(change, text)


def _formula(text, *, block):
    text = text.strip().removeprefix("\\(").removeprefix("\\[").removesuffix("\\)").removesuffix("\\]")
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    text = text.replace(r"\arg", r"\operatorname{arg}")  # the converter does not know it
    return convert(text, display="block" if block else "inline")
