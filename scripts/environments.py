"""Make an environment with the lowest or the newest versions that pyproject.toml allows, and run the tests in it.

    python scripts/environments.py lowest --folder ~/lowest --tests tests/metrics tests/decisions
    python scripts/environments.py newest --folder ~/newest --python python3.13

The folder lies outside the repository. It gets a virtual environment, the wheel of this tree with every extra that a
user can ask for, the unpacked sdist, whose tests are run, and what they need. "lowest" holds every package that
pyproject.toml names to the version behind its `>=`; what those need in turn is as new as pip allows. An environment
that is there already is used again, with the wheel built anew.

The tests run against the installed wheel, not against `src/`. Tests that compare with the packages of the extra `peers`
skip themselves unless `--peers` installs those too: their own bounds would raise ours.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
# What runs the tests; these have no lowest version, because no user needs them.
TOOLS = (
    *("pytest", "pytest-xdist", "hypothesis", "sybil", "httpx2", "psutil", "playwright", "build"),
    *("nbclient", "ipykernel", "check-jsonschema"),
)
EXTRAS = "all,ray,vision"
# What only developers install: no bound of theirs is tried, and `docs` needs a newer jinja2 than a report does.
DEVELOPERS = ("dev", "docs", "peers")


def lowest_versions(project: dict) -> list[str]:
    """One `name==version` for each package that the core or an extra for users names with a lower bound."""
    extras = project["optional-dependencies"]
    named = [
        *project["dependencies"],
        *(each for name in extras if name not in DEVELOPERS for each in extras[name]),
    ]
    bounds: dict[str, set[str]] = {}
    for requirement in map(Requirement, named):
        for bound in requirement.specifier:
            if bound.operator == ">=":
                bounds.setdefault(requirement.name, set()).add(bound.version)
    unlike = {name: versions for name, versions in bounds.items() if len(versions) > 1}
    if unlike:
        sys.exit(f"pyproject.toml names more than one lower bound: {unlike}")
    return [f"{name}=={version}" for name, (version,) in sorted(bounds.items())]


def make(folder: Path, which: str, interpreter: str, *, peers: bool) -> Path:
    """The environment's interpreter, after everything was installed; the sources of the tests lie in `source`."""
    python = folder / "environment" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if uv := shutil.which("uv"):  # resolves in seconds what takes pip minutes
        pip = [uv, "pip", "install", "--quiet", "--python", str(python)]
    if not python.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run([interpreter, "-m", "venv", str(folder / "environment")])
        _run([*pip, "build"])
    wheel = _build(folder, python)
    if not (folder / "made").exists():
        extras = EXTRAS + (",docs" if which == "newest" else "") + (",peers" if peers else "")
        constraints = folder / "versions.txt"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        constraints.write_text("\n".join(lowest_versions(project)) + "\n" if which == "lowest" else "")
        _run([*pip, "-c", str(constraints), f"{wheel}[{extras}]", *TOOLS])
        (folder / "made").touch()
    _run([*pip, "--no-deps", "--force-reinstall", str(wheel)])
    return python


def _build(folder: Path, python: Path) -> Path:
    """Build the sdist and from it the wheel, and unpack the sdist: what is tested cannot change while it is tested."""
    for old in ("dist", "source"):
        shutil.rmtree(folder / old, ignore_errors=True)
    _run([str(python), "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)])
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (folder / sdist.name.removesuffix(".tar.gz")).rename(folder / "source")
    return wheel


def _run(command: list[str]) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True)


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("--folder", type=Path, required=True, help="outside the repository")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment")
    parser.add_argument("--peers", action="store_true", help="install the extra peers too")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="what pytest is given; nothing for no tests")
    options = parser.parse_args()
    folder = options.folder.expanduser().resolve()
    if folder.is_relative_to(ROOT):
        parser.error("--folder must lie outside the repository")
    python = make(folder, options.which, options.python, peers=options.peers)
    print(_output([str(python), "-c", _VERSIONS]), flush=True)
    if options.tests:
        # The wheel is what is tested: a PYTHONPATH of the developer's would put src/ before it.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(python), "-m", "pytest", "-q", *options.tests]
        sys.exit(subprocess.run(command, cwd=folder / "source", env=environment, check=False).returncode)


_VERSIONS = """
import platform, re
from importlib.metadata import requires, version
names = sorted({re.split("[^A-Za-z0-9_.-]", each)[0] for each in requires("calibrant") if "extra ==" not in each})
print(f"Python {platform.python_version()}, calibrant {version('calibrant')}:")
print(", ".join(f"{name} {version(name)}" for name in names))
"""

if __name__ == "__main__":
    main()
