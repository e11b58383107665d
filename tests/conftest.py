"""Settings for the whole suite."""

import gc
import os
import re
import shutil
import sys
import zipfile
from html import unescape
from pathlib import Path

import pytest

# Two test processes on two cores: more threads each would only fight. Spawned processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# The same examples on every machine: a red run can be repeated. Deadlines would be timed assertions.
settings.register_profile("calibrant", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calibrant")

_CHROMIUM = shutil.which("chromium")
_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
_DATA = os.environ.get("CALIBRANT_DATA")
_NEEDS = {
    "browser": (_CHROMIUM is not None, "Debian's chromium is not installed"),
    "postgres": (bool(_POSTGRES), "no PostgreSQL server is installed"),
    "real_data": (_DATA is not None, "CALIBRANT_DATA is not set"),
}

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_collection_modifyitems(config, items):
    """Leave out what this machine cannot run and say so; under CALIBRANT_REQUIRE_ALL run it and let it fail."""
    if os.environ.get("CALIBRANT_REQUIRE_ALL"):
        return
    for item in items:
        for marker, (present, reason) in _NEEDS.items():
            if item.get_closest_marker(marker) and not present:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def real_data_dir():
    """Folder with real image sets as .npz."""
    assert _DATA, "CALIBRANT_DATA is not set"
    return Path(_DATA)


@pytest.fixture
def calibrant(capsys):
    """Run the command line in this process: `code, out, err = calibrant("evaluate", "x.npz")`."""
    from calibrant.cli import run

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory):
    """No test reads or writes what this user trusts."""
    folder = tmp_path_factory.mktemp("state")
    os.environ["CALIBRANT_STATE"] = str(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def few_draws():
    """Intervals of studies from a tenth of the draws: what the draws give is tested with the metrics."""
    from calibrant.studies import records, referee

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(referee, "N_RESAMPLES", 40)
        patch.setattr(records, "_N_RESAMPLES", 40)
        yield


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Write a module into the working directory, as a new process would find it: `own_module("mine", text)`.

    Called again it is an edit before that process starts. No module outlives its test, whatever the test does. It is
    code that the user has trained with before, unless `trusted=False`.
    """
    monkeypatch.chdir(tmp_path)
    from calibrant.files import sha256_of
    from calibrant.own_code import remember

    before = set(sys.modules)

    def write(name, text, *, trusted=True):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        if trusted:
            remember(name, sha256_of(path))
        sys.modules.pop(name, None)
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def notebook_rows():
    """The rows of what a notebook shows of an object, as text, with nothing in it but the tags of one table."""

    def read(shown):
        html = shown._repr_html_()
        assert not re.search(r"[<>\"']", re.sub(r"</?(table|caption|thead|tbody|tr|th|td)>", "", html))
        rows = re.findall(r"<tr>(.*?)</tr>", html)
        return [[unescape(cell).strip() for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)] for row in rows]

    return read


@pytest.fixture(scope="session")
def python():
    """The interpreter to start child processes with."""
    return sys.executable


def _list_of_members(path, at, value):
    """Overwrite two bytes of each entry of the archive's list of members."""
    content = bytearray(path.read_bytes())
    start = content.find(b"PK\x01\x02")
    while start >= 0:
        content[start + at : start + at + 2] = value
        start = content.find(b"PK\x01\x02", start + 4)
    path.write_bytes(content)


def _garble_compressed(path):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        starts = [info.header_offset + 30 + len(info.filename) for info in archive.infolist()]
    content = bytearray(path.read_bytes())
    for start in starts:
        content[start : start + 4] = b"\xff" * 4
    path.write_bytes(content)


def _open_bracket(path):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"), }", b"(, }", 1))


@pytest.fixture(
    params=[
        pytest.param(_garble_compressed, id="garbled"),
        pytest.param(_open_bracket, id="header without end"),
        pytest.param(lambda path: _list_of_members(path, 6, b"\xd2\x00"), id="newer zip"),
        pytest.param(lambda path: _list_of_members(path, 8, b"\x01\x00"), id="encrypted"),
    ]
)
def damage(request):
    """`damage(path)` spoils an .npz file; what zipfile and NumPy raise on reading it differs from one to the next."""
    return request.param


@pytest.fixture(scope="session")
def chromium():
    """Debian's browser, started once."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=list(_FLAGS))
        yield browser
        # A process that another test left behind holds the pipes that the browser's driver waits for to be closed.
        gc.collect()
        browser.close()


def _visitor(chromium):
    contexts, complaints = [], []

    def visit(path, *, width=1200, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        address = path.resolve().as_uri()
        page.on("request", lambda request: _note(request.url, address, complaints))
        page.goto(address)
        page.wait_for_selector("html[data-ready=true]")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def open_page(chromium):
    """Open a file from disk and wait until it is live; fails the test on a console message or a network request."""
    yield from _visitor(chromium)


@pytest.fixture(scope="module")
def open_once(chromium):
    """The same for a page that the tests of a module share: reading Plotly anew for each would take a minute."""
    yield from _visitor(chromium)


def _note(url, address, complaints):
    if not url.startswith((address, "data:")):
        complaints.append(f"request: {url}")
