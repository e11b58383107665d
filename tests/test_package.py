"""What lies around the package: the index page, the forms and workflows of the repository, one version everywhere."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import calibrant

ROOT = Path(__file__).parents[1]
TEXT = "[guide](docs/a.md#x), ![picture](docs/b.png), [paper](https://arxiv.org/abs/2212.10005), [below](#below)"


@pytest.fixture
def build(monkeypatch):
    """`hatch_build.py`, which hatchling runs; it need not be installed here."""
    for name, hook in {"metadata": "MetadataHookInterface", "builders.hooks": "BuildHookInterface"}.items():
        interface = ModuleType(f"hatchling.{name}.plugin.interface")
        setattr(interface, hook, object)
        monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_index_page_work_from_anywhere(build):
    assert build.with_absolute_links(TEXT, "https://example.org/c", "1.2") == (
        "[guide](https://example.org/c/blob/v1.2/docs/a.md#x), ![picture](https://example.org/c/raw/v1.2/docs/b.png), "
        "[paper](https://arxiv.org/abs/2212.10005), [below](#below)"
    )


def test_the_script_of_plotly_becomes_part_of_the_package(build, tmp_path):
    pytest.importorskip("plotly")
    assets = tmp_path / "src/calibrant/report/assets"
    assets.mkdir(parents=True)
    hook = build.PlotlyHook()
    hook.root = str(tmp_path)
    hook.initialize("standard", {})
    assert "plotly.js" in (assets / "plotly.min.js").read_text(encoding="utf-8")[:200]


def test_without_a_public_repository_nothing_is_linked_that_is_not_there(build):
    hook = build.ReadmeHook()
    hook.root, metadata = str(ROOT), {}
    hook.update(metadata)
    assert "](docs/" not in metadata["readme"]["text"]
    assert build.with_absolute_links(TEXT, None, "1.2").startswith("guide, , [paper](https")


def test_the_version_is_the_same_everywhere():
    assert f"version: {calibrant.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {calibrant.__version__}, not released yet\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_the_repositorys_host_follow_their_schemas(schema, files):
    found = sorted(map(str, ROOT.glob(files)))
    assert found
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *found]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_lower_bound_is_named_once():
    """Two bounds for one package would leave open which of them was tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [each for found in (project["dependencies"], *project["optional-dependencies"].values()) for each in found]
    bounds = {}
    for each in named:
        if match := re.match(r"([A-Za-z0-9_.-]+)(?:\[.*\])?>=([0-9.]+)", each):
            bounds.setdefault(match[1], set()).add(match[2])
    assert {name for name, found in bounds.items() if len(found) > 1} == set()
