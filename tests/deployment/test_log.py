import os
import signal
import sqlite3
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from calibrant.decisions import RoutingRule
from calibrant.deployment import ContradictingLabel, Decision, DecisionLog, DuplicateId, Stream, UnknownId
from calibrant.errors import InvalidInput, OutputError
from tests.deployment.conftest import with_rule

MODEL, OTHER = "a" * 64, "b" * 64
NAMES = ("cat", "dog", "[/red] hen")
RULE = RoutingRule(threshold=0.9, n_classes=3, target_accuracy=0.99, confidence=0.95, class_names=NAMES)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "decisions.db"


def new(place, **changes):
    return DecisionLog(place, **{"model": MODEL, "n_classes": 3, "class_names": NAMES, **changes})


def cases(n, start=0, **extras):
    return [
        Decision(f"case-{i}", i % 3, 0.5 + (i % 50) / 100, i % 2 == 0, () if i % 2 == 0 else (i % 3, 2), "why", extras)
        for i in range(start, start + n)
    ]


def everything(log, **options):
    return [entry for block in log.decisions(**options) for entry in zip(block.ids, block.target, strict=True)]


def test_what_goes_in_comes_out_in_its_order_with_labels_joined_by_id(place):
    with new(place) as log:
        digest = log.add_policy(with_rule(RULE))
        log.append(cases(25, site="north"), policy=digest)
        log.append([Decision("odd \N{SNOWMAN} 'id", 2, 1.0, True, extras={"age": 7, "ok": None, "late": True})])
        log.label("case-3", "dog")
        assert log.label_all({"case-7": 2, "case-3": 1}) == 1
    with DecisionLog(place) as log:
        assert (log.model, log.n_classes, log.class_names, len(log)) == (MODEL, 3, NAMES, 26)
        assert {key: policy.rule for key, policy in log.policies().items()} == {digest: RULE}
        blocks = list(log.decisions(block=10))
        logged = log.find("case-7")
    assert [len(block) for block in blocks] == [10, 10, 6]
    first, _, last = blocks
    expected = cases(10, site="north")
    assert first.ids.tolist() == [each.id for each in expected]
    assert first.predicted.tolist() == [each.predicted for each in expected]
    assert first.confidence.tolist() == [each.confidence for each in expected]
    assert first.automate.tolist() == [each.automate for each in expected]
    assert first.shortlists == [each.shortlist for each in expected]
    assert first.target.tolist() == [-1, -1, -1, 1, -1, -1, -1, 2, -1, -1]
    assert first.label_sequence.tolist() == [0, 0, 0, 1, 0, 0, 0, 2, 0, 0]
    assert set(first.policy) == {digest} == {with_rule(RULE).digest}
    assert first.extras["site"].tolist() == ["north"] * 10
    assert first.time.dtype == "datetime64[us]"
    assert np.concatenate([block.sequence for block in blocks]).tolist() == list(range(1, 27))
    assert last.ids[-1] == "odd \N{SNOWMAN} 'id"
    assert last.policy[-1] == ""
    assert {name: column[-1] for name, column in last.extras.items()} == {
        "site": None,
        "age": 7,
        "ok": None,
        "late": True,
    }
    assert vars(logged).items() >= vars(cases(1, 7, site="north")[0]).items()
    assert (logged.sequence, logged.target, logged.decision) == (8, 2, "review")


def test_since_a_number_and_labelled_alone(place):
    early = datetime(2026, 1, 1, tzinfo=UTC)
    with new(place) as log:
        log.append(cases(3), time=early)
        log.append(cases(3, 3), time=early + timedelta(days=1, microseconds=1))
        # The clock goes back: the order stays that of the log.
        log.append(cases(3, 6), time=early - timedelta(days=1))
        log.label_all({"case-1": 0, "case-8": 0})
        ids = [name for name, _ in everything(log)]
        assert ids == [f"case-{i}" for i in range(9)]
        assert [name for name, _ in everything(log, since=7)] == ["case-7", "case-8"]
        assert everything(log, labelled=True, block=1) == [("case-1", 0), ("case-8", 0)]
        assert len(everything(log, labelled=False)) == 7
        with pytest.raises(InvalidInput, match="time must have a zone"):
            log.append(cases(1, 9), time=datetime(2026, 1, 1))  # noqa: DTZ001


def test_labels_that_come_while_blocks_are_read_are_left_out(place):
    """The first block had no label yet, the second had a later one, and the next look of a monitor another order."""
    with new(place) as log:
        log.append(cases(4))
        log.label("case-2", 1)
        blocks = log.decisions(block=2)
        targets = next(blocks).target.tolist()
        log.label_all({"case-0": 1, "case-3": 1})
        assert targets + next(blocks).target.tolist() == [-1, -1, 1, -1]
        assert [len(block) for block in log.decisions(labelled=True)] == [3]


def test_only_the_extras_that_are_wanted_are_read(place):
    with new(place) as log:
        log.append(cases(2, site="north", age=7))
        log.append(cases(1, 2, site="south"))
        for wanted, expected in [
            (["site"], {"site": ["north", "north", "south"]}),
            (["age", "nothing"], {"age": [7, 7, None]}),
            ([], {}),
            (None, {"site": ["north", "north", "south"], "age": [7, 7, None]}),
        ]:
            (block,) = log.decisions(extras=wanted)
            assert {name: column.tolist() for name, column in block.extras.items()} == expected


def test_an_id_is_decided_once_and_a_refused_batch_leaves_nothing(place):
    with new(place) as log:
        log.append(cases(3))
        with pytest.raises(DuplicateId, match="'case-2' was decided before"):
            log.append([*cases(2, 10), *cases(1, 2)])
        with pytest.raises(DuplicateId, match="'case-5' occurs twice"):
            log.append([*cases(2, 4), *cases(1, 5)])
        assert len(log) == 3
        log.append(cases(2, 10))
        assert len(log) == 5


def test_the_first_label_counts(place):
    with new(place) as log:
        log.append(cases(3))
        log.label("case-0", 1)
        log.label("case-0", 1)
        with pytest.raises(ContradictingLabel, match=r"'case-0' has the label 1, got 2. The first label counts"):
            log.label_all({"case-1": 0, "case-0": 2})
        with pytest.raises(UnknownId, match="'case-9' was never decided"):
            log.label_all({"case-1": 0, "case-9": 2})
        assert everything(log) == [("case-0", 1), ("case-1", -1), ("case-2", -1)]
        for target, message in [(3, "lie in 0..2"), (-1, "at least 0"), ("hog", "Did you mean 'dog'"), (1.0, "whole")]:
            with pytest.raises(InvalidInput, match=message):
                log.label("case-1", target)


def test_a_log_of_another_model_is_refused(place):
    new(place).close()
    with pytest.raises(InvalidInput, match=r"one of the model bbbbbbbbbbbb..., got one of aaaaaaaaaaaa"):
        new(place, model=OTHER)
    with DecisionLog(place) as log:
        assert log.model == MODEL


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision("", 0, 0.5, True), "id must be text of 1 to 256"),
        (Decision("x" * 257, 0, 0.5, True), "id must"),
        (Decision("a\0b", 0, 0.5, True), "id must"),
        (Decision("\ud800", 0, 0.5, True), "id must"),
        (Decision("a\x1b[31m", 0, 0.5, True), "without control characters"),
        (Decision("a\nb", 0, 0.5, True), "id must"),
        (Decision("a\u202eb", 0, 0.5, True), "id must"),
        (Decision(7, 0, 0.5, True), "id must"),
        (Decision("a", 3, 0.5, True), "predicted must lie in 0..2"),
        (Decision("a", 0, float("nan"), True), "confidence must"),
        (Decision("a", 0, 0.5, True, extras={"x": [1]}), "extra x must be text"),
        (Decision("a", 0, 0.5, True, extras={"x": float("inf")}), "extra x must"),
        (Decision("a", 0, 0.5, True, extras={"x": 10**400}), "extra x must"),
        (Decision("a", 0, 0.5, True, extras={"x": "\0"}), "extra x must"),
        (
            Decision("a", 0, 0.5, True, extras={"x": "y" * 1001}),
            "extra x must have at most 1,000 characters, got 1,001",
        ),
        (
            Decision("a", 0, 0.5, True, extras=dict.fromkeys(map(str, range(101)))),
            "extras of a case must be at most 100",
        ),
    ],
)
def test_bad_decisions(tmp_path, decision, message):
    with new(tmp_path / "log.db") as log:
        with pytest.raises(InvalidInput, match=message):
            log.append([Decision("fine", 0, 0.5, True), decision])
        assert len(log) == 0


def test_bad_places(tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)
    sqlite3.connect(tmp_path / "empty.db").close()
    for arguments, message in [
        ({"place": tmp_path / "missing.db"}, "does not exist"),
        ({"place": tmp_path / "text.db"}, "cannot be used: DatabaseError"),
        ({"place": tmp_path / "empty.db"}, "holds no decision log"),
        ({"place": tmp_path / "no" / "folder.db", "model": MODEL, "n_classes": 2}, "a folder that exists"),
        ({"place": tmp_path / "a.db", "model": "short"}, "be a SHA-256"),
        ({"place": tmp_path / "a.db", "model": MODEL}, "n_classes must"),
        ({"place": tmp_path, "model": MODEL, "n_classes": 2}, "SQLite must be able to write to its folder"),
        ({"place": "postgresql://host/base", "model": MODEL}, "a folder that exists"),
        ({"place": 7, "model": MODEL}, "decision log must be a path"),
    ]:
        with pytest.raises((InvalidInput, OutputError), match=message) as caught:
            DecisionLog(**arguments)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["what?.db", "a#b.db", "a%20b.db", "a b&c=d.db", ":memory:", "file:x.db", "\N{SNOWMAN}.db"]
)
def test_any_file_name_is_that_of_the_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with new(name) as log:
        log.append(cases(1))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with DecisionLog(tmp_path / name) as log:
        assert len(log) == 1


def _delete(folder):
    for path in folder.glob("d.db*"):
        path.unlink()


def _move(folder):
    (folder / "away").mkdir()
    for path in folder.glob("d.db*"):
        path.rename(folder / "away" / path.name)


def _replace(folder):
    _move(folder)
    new(folder / "d.db").close()


def _delete_newest(folder):
    (folder / "d.db-wal").unlink()


@pytest.mark.parametrize("change", [_delete, _delete_newest, _move, _replace])
def test_a_log_whose_file_has_gone_takes_nothing(tmp_path, change):
    """Also from threads whose connection is new: SQLite would make an empty file for it."""
    with new(tmp_path / "d.db") as log:
        log.append(cases(3))
        change(tmp_path)
        refused = []

        def write(own):
            try:
                log.append(cases(1, 10 + own))
            except OutputError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=write, args=(own,)) for own in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 4
        assert all("after it was opened. Nothing was logged." in message for message in refused)
        calls = (lambda: log.label("case-0", 1), lambda: len(log), lambda: list(log.decisions()), lambda: log.find("a"))
        for call in (*calls, log.check):
            with pytest.raises(OutputError):
                call()
    if change is _replace:
        with DecisionLog(tmp_path / "d.db") as other:
            assert len(other) == 0
    elif change is not _delete_newest:
        assert not (tmp_path / "d.db").exists()
    if change in (_move, _replace):
        with DecisionLog(tmp_path / "away" / "d.db") as moved:
            assert [name for name, _ in everything(moved)] == ["case-0", "case-1", "case-2"]


def test_a_log_that_is_moved_while_a_writer_waits_for_the_lock_takes_nothing(tmp_path):
    with new(tmp_path / "d.db") as log:
        holder = sqlite3.connect(tmp_path / "d.db", isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        refused = []

        def write():
            try:
                log.append(cases(1))
            except OutputError as error:
                refused.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        _move(tmp_path)
        holder.execute("ROLLBACK")
        holder.close()
        writer.join()
    assert len(refused) == 1
    with DecisionLog(tmp_path / "away" / "d.db") as moved:
        assert len(moved) == 0


def test_a_log_that_is_moved_back_goes_on(tmp_path):
    with new(tmp_path / "d.db") as log:
        log.append(cases(1))
        _move(tmp_path)
        with pytest.raises(OutputError):
            log.append(cases(1, 1))
        for path in (tmp_path / "away").iterdir():
            path.rename(tmp_path / path.name)
        log.append(cases(1, 2))
        assert [name for name, _ in everything(log)] == ["case-0", "case-2"]


def test_a_damaged_rule_is_refused(tmp_path):
    with new(tmp_path / "log.db") as log:
        log.add_policy(with_rule(RULE))
        with pytest.raises(InvalidInput, match="log's 3 classes"):
            log.add_policy(with_rule(RoutingRule(threshold=0.9, n_classes=4)))
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("UPDATE calibrant_policies SET content = replace(content, '0.99', '0.90')")
    connection.close()
    with DecisionLog(tmp_path / "log.db") as log, pytest.raises(InvalidInput, match="must be undamaged"):
        log.policies()


def test_a_failed_write_leaves_the_log_as_it_was(tmp_path):
    with new(tmp_path / "log.db") as log:
        log.append(cases(2))
        with sqlite3.connect(tmp_path / "log.db") as other:
            other.execute("ALTER TABLE calibrant_decisions RENAME TO away")
            other.commit()
            with pytest.raises(OutputError, match=r"decision log .*log.db cannot be used: OperationalError"):
                log.append(cases(2, 2))
            other.execute("ALTER TABLE away RENAME TO calibrant_decisions")
            other.commit()
        other.close()
        assert len(log) == 2


def test_threads_that_write_at_once_lose_nothing_and_a_reader_sees_every_number(place):
    """Numbers become visible in their order: a reader that goes on from the last number misses none."""
    with new(place) as log:
        threads = [
            threading.Thread(target=lambda own=own: [log.append(cases(2, 1000 * own + 2 * k)) for k in range(10)])
            for own in range(4)
        ]
        for thread in threads:
            thread.start()
        seen, last = [], 0
        while any(thread.is_alive() for thread in threads) or last < 80:
            for block in log.decisions(since=last):
                seen += block.sequence.tolist()
                last = seen[-1]
        for thread in threads:
            thread.join()
        assert seen == list(range(1, 81))


def test_threads_that_append_the_same_id_at_once_have_one_winner_each(place):
    """Batches of several threads share a transaction, and still each is written as a whole or refused as a whole."""
    with new(place) as log:
        outcomes = []

        def append(own):
            for k in range(10):
                try:
                    log.append([Decision(f"shared-{k}", 0, 0.5, True), Decision(f"own-{own}-{k}", 0, 0.5, True)])
                    outcomes.append((own, k, True))
                except DuplicateId:
                    outcomes.append((own, k, False))

        threads = [threading.Thread(target=append, args=(own,)) for own in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ids = [name for name, _ in everything(log)]
    winners = [(own, k) for own, k, won in outcomes if won]
    assert sorted(k for _, k in winners) == list(range(10))
    assert sorted(ids) == sorted([*(f"shared-{k}" for k in range(10)), *(f"own-{own}-{k}" for own, k in winners)])


def test_batches_of_one_call_are_refused_one_by_one(place):
    with new(place) as log:
        log.append(cases(1))
        faults = log.append_all([cases(2, 10), [*cases(1, 20), *cases(1)], [Decision("", 0, 0.5, True)], cases(1, 11)])
        assert [type(fault) for fault in faults] == [type(None), DuplicateId, InvalidInput, DuplicateId]
        assert [name for name, _ in everything(log)] == ["case-0", "case-10", "case-11"]


WRITER = """
import sys
from calibrant.deployment import Decision, DecisionLog
log = DecisionLog(sys.argv[1], model="a" * 64, n_classes=3)
for i in range(100000):
    log.append([Decision(f"{sys.argv[2]}-{i}", 0, 0.5, True)])
    print(i, flush=True)
"""


def test_what_was_appended_survives_a_kill(place, python):
    """Two processes begin a log at once and are killed while they write: all that they said is there."""
    command = [python, "-c", WRITER, str(place)]
    writers = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in "ab"
    ]
    said = []
    for name, writer in zip("ab", writers, strict=True):
        lines = []
        while len(lines) < 40:
            line = writer.stdout.readline()
            assert line, writer.stderr.read()
            lines.append(line)
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.communicate()
        said += [f"{name}-{int(line)}" for line in lines if line.endswith("\n")]
    with DecisionLog(place) as log:
        ids = {name for name, _ in everything(log)}
        assert set(said) <= ids
        assert len(ids) <= len(said) + 2
        log.append(cases(1))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("UPDATE calibrant_decisions SET extras = ?", "{"),
        ("UPDATE calibrant_decisions SET extras = ?", None),
        ("UPDATE calibrant_decisions SET shortlist = ?", "7"),
        ("UPDATE calibrant_decisions SET confidence = ?", "high"),
        ("UPDATE calibrant_decisions SET predicted = ?", 2**63 - 1),
        ("UPDATE calibrant_policies SET digest = ?", None),
        ("UPDATE calibrant_policies SET content = ?", None),
        ("UPDATE calibrant_log SET class_names = ?", "5"),
        ("UPDATE calibrant_log SET class_names = ?", "[" * 100_000),
        ("UPDATE calibrant_log SET n_classes = ?", "three"),
    ],
)
def test_a_damaged_log_is_one_line(tmp_path, change, value):
    with DecisionLog(tmp_path / "d.db", model=MODEL, n_classes=3, class_names=NAMES) as log:
        log.append([Decision("a", 1, 0.97, True)], policy=log.add_policy(with_rule(RULE)))
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '')")
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.execute(change, (value,))

    def read():
        with DecisionLog(tmp_path / "d.db") as log:
            Stream.of_log(log)

    with pytest.raises(InvalidInput) as caught:
        read()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM calibrant_decisions WHERE sequence % 2 = 0",
        "DELETE FROM calibrant_decisions WHERE sequence <= 5",
        "UPDATE calibrant_decisions SET sequence = 1000 WHERE sequence = 10",
        "DELETE FROM calibrant_labels WHERE sequence = 1",
    ],
)
def test_missing_rows_are_noticed(tmp_path, change):
    """A log of which half was deleted was read without a word."""
    with new(tmp_path / "d.db") as log:
        log.append(cases(10))
        log.label_all({"case-0": 1, "case-9": 1})
        with sqlite3.connect(tmp_path / "d.db") as connection:
            connection.execute(change)
        connection.close()
        if "decisions" in change:
            with pytest.raises(InvalidInput, match="have every decision, got none with number"):
                everything(log)
    with pytest.raises(InvalidInput, match="have every row"):
        DecisionLog(tmp_path / "d.db")


def test_a_damaged_page_is_noticed(tmp_path):
    with new(tmp_path / "d.db") as log:
        log.append(cases(500))
    content = bytearray((tmp_path / "d.db").read_bytes())
    content[8192:12288] = bytes(4096)
    (tmp_path / "d.db").write_bytes(content)
    with pytest.raises((InvalidInput, OutputError)):
        DecisionLog(tmp_path / "d.db")


def test_reading_changes_no_file_that_is_not_a_log(tmp_path):
    (tmp_path / "empty.db").touch()
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE somebody (name TEXT)")
    for name in ("empty.db", "other.db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(InvalidInput, match="holds no decision log"):
            DecisionLog(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
