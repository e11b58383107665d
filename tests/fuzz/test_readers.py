"""Every reader keeps the rule of `outcome.py` on damaged files. A few examples here; `make fuzz` tries thousands."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus as corpora
from tests.fuzz.attempt import left_behind, listing, set_up
from tests.fuzz.outcome import KEPT, LONGEST_LINE, MEGABYTES, Attempt, verdict
from tests.fuzz.targets import TARGETS, prepare


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    corpora.build(folder)
    prepare(folder)
    return folder


QUICK = [target for target in TARGETS if not target.slow]


@pytest.mark.parametrize("target", QUICK, ids=lambda target: target.name)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(random=st.randoms(use_true_random=False))
def test_damaged_files_are_read_right_or_refused_in_one_line(target, corpus, tmp_path, capsys, random):
    folder = tmp_path / "attempt"
    shutil.rmtree(folder, ignore_errors=True)
    here, done = set_up(target, corpus, folder, random)
    before = listing(folder)
    capsys.readouterr()
    code = target.run(here, folder / "out")
    out, err = capsys.readouterr()
    right = target.right(here, out) if target.right is not None and code == 0 else None
    attempt = Attempt(code, out, err, left=left_behind(before, listing(folder)), right=right)
    assert verdict(attempt) in KEPT, (done, attempt)


@pytest.mark.parametrize("target", QUICK, ids=lambda target: target.name)
def test_undamaged_files_are_read(target, corpus, tmp_path, capsys):
    shutil.copytree(corpus, tmp_path / "in")
    code = target.run(tmp_path / "in", tmp_path / "out")
    out, err = capsys.readouterr()
    assert code == 0, err
    assert target.right is None or target.right(tmp_path / "in", out)


LINE = "calibrant: x must be y, got z.\n"


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (Attempt(0, "{}"), "read"),
        (Attempt(0, "{}", "calibrant: warning: old\n", left=["out.csv"], right=True), "read"),
        (Attempt(2, err=LINE), "refused"),
        (Attempt(2, err="calibrant: warning: old\n" + LINE), "refused"),
        (Attempt(None), "hang"),
        (Attempt(1, err="Traceback (most recent call last)\n"), "traceback"),
        (Attempt(-11), "signal 11"),
        (Attempt(1, err=LINE), "exit 1"),
        (Attempt(70, err=LINE), "exit 70"),
        (Attempt(0, megabytes=MEGABYTES + 1), "memory"),
        (Attempt(2), "0 lines"),
        (Attempt(2, err=LINE + LINE), "2 lines"),
        (Attempt(2, err="x" * (LONGEST_LINE + 1)), "long line"),
        (Attempt(2, err="calibrant: a\x1b[31m\n"), "escapes"),
        (Attempt(2, err="calibrant: \u202ea\n"), "escapes"),
        (Attempt(2, err="calibrant: \uebbe is no number\n"), "refused"),
        (Attempt(2, err=LINE, left=["out.csv"]), "file left"),
        (Attempt(0, right=False), "wrong number"),
    ],
)
def test_the_rule(attempt, expected):
    assert verdict(attempt) == expected
