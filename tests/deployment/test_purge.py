"""After a purge nothing names a case, and the monitor finds the same evidence."""

import sqlite3
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from calibrant.decisions import RoutingRule
from calibrant.decisions.rule import GroupEvidence
from calibrant.deployment import Decision, DecisionLog, Stream, UnknownId, describe, watch
from calibrant.errors import InvalidInput, OutputError
from tests.deployment.conftest import with_rule

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
EVIDENCE = (GroupEvidence("north", 500, 400, 1, True),)
PLAIN = {"threshold": 0.9, "n_classes": 2, "target_accuracy": 0.9, "confidence": 0.95}
RULES = {
    "groups": RoutingRule(**PLAIN, groups="site", group_evidence=EVIDENCE),
    "clusters": RoutingRule(**PLAIN, clusters=100, cluster_column="patient", largest_cluster=5),
}


@pytest.fixture(params=RULES)
def log(request, tmp_path):
    """600 decisions over 60 days, most of them labelled, with facts that should not be kept for ever."""
    rng = np.random.default_rng(0)
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=2) as log:
        digest = log.add_policy(with_rule(RULES[request.param]))
        for day in range(60):
            rows = []
            for i in range(10):
                facts = {"site": "north" if i % 2 else "south", "patient": day * 2 + i // 5, "name": f"Secret {day}"}
                sure = float(rng.uniform(0.8, 1.0))
                rows.append(Decision(f"mrs-smith-{day}-{i}", 0, sure, sure >= 0.9, (), "Looks like Smith.", facts))
            log.append(rows, policy=digest, time=FIRST + timedelta(days=day))
            log.label_all({row.id: int(rng.random() < 0.05 + 0.005 * day) for row in rows})
        yield log


def test_the_evidence_is_the_same_and_the_facts_are_gone(log, tmp_path):
    before = watch(Stream.of_log(log))
    assert log.purge(FIRST + timedelta(days=45)) == 450
    after = watch(Stream.of_log(log))
    assert after.signals == before.signals
    assert after.described == before.described
    assert after.labelling == before.labelling
    assert log.purge(FIRST + timedelta(days=45)) == 0
    for block in log.decisions():
        assert all(name.startswith("calibrant-purged-") for name in block.ids[:450])
        assert block.ids[450] == "mrs-smith-45-0"
        assert set(block.extras) == {"site", "patient", "name"}
        assert block.extras["name"][:450].tolist() == [None] * 450
        assert {log.find(name).reason for name in block.ids[:450]} == {""}
    content = b"".join(path.read_bytes() for path in tmp_path.glob("log.db*"))
    for day in range(60):
        assert (f"mrs-smith-{day}-0".encode() in content) is (day >= 45)
        assert (f'Secret {day}"'.encode() in content) is (day >= 45)


def test_other_columns_are_kept_on_request(log):
    log.purge(FIRST + timedelta(days=60), keep=["name"])
    assert next(log.decisions()).extras["name"][0] == "Secret 0"


def test_a_misspelt_column_is_refused_before_anything_is_purged(log):
    with pytest.raises(InvalidInput, match=r"keep must name columns of the log, got 'nane'\. Did you mean 'name'\?"):
        log.purge(FIRST + timedelta(days=60), keep=["site", "nane"])
    assert log.find("mrs-smith-0-0").extras["name"] == "Secret 0"


def test_a_purged_case_gets_no_label_and_a_new_one_may_have_its_id(log):
    log.purge(FIRST + timedelta(days=1))
    with pytest.raises(UnknownId):
        log.label("mrs-smith-0-0", 1)
    log.append([Decision("mrs-smith-0-0", 0, 0.95, True)])
    assert log.find("mrs-smith-0-0").sequence == 601


def test_no_id_protects_a_case(log):
    log.append([Decision("calibrant-purged-smith", 0, 0.95, True, (), "Looks like Smith.", {"name": "Smith"})])
    assert log.purge(datetime(2100, 1, 1, tzinfo=UTC)) == 601
    assert log.find("calibrant-purged-smith") is None


def test_a_reader_that_keeps_old_rows_on_the_disk_is_an_error(tmp_path):
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=2) as log:
        log.append([Decision("mrs-smith", 0, 0.95, True)])
        reader = sqlite3.connect(tmp_path / "log.db")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM calibrant_decisions").fetchone()
        with pytest.raises(OutputError, match="still holds purged rows"):
            log.purge(datetime(2100, 1, 1, tzinfo=UTC))
        reader.close()
        assert log.purge(datetime(2100, 1, 1, tzinfo=UTC)) == 0
        assert not any(b"mrs-smith" in path.read_bytes() for path in tmp_path.glob("log.db*"))


def test_command(calibrant, log, tmp_path):
    expected = describe(watch(Stream.of_log(log))).splitlines()[0]
    code, out, err = calibrant("purge", tmp_path / "log.db", "--before", "2026-01-11")
    assert (code, out, err) == (0, "Purged 100 of 600 decisions: their ids, reasons and extras are gone.\n", "")
    assert calibrant("monitor", tmp_path / "log.db")[1].splitlines()[0] == expected


@pytest.mark.parametrize(
    "arguments", [("missing.db", "--before", "2026-01-01"), ("log.db",), ("log.db", "--before", "x")]
)
def test_bad_input_is_2(calibrant, log, tmp_path, arguments):
    assert calibrant("purge", tmp_path / arguments[0], *arguments[1:])[0] == 2
