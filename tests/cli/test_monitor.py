import csv
import json
import subprocess
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule, choose_threshold, route_file
from calibrant.decisions.rule import GroupEvidence
from calibrant.deployment import Decision, DecisionLog, Stream, watch
from calibrant.errors import InvalidInput
from tests.deployment.conftest import draw, joined, with_rule


@pytest.fixture
def files(tmp_path):
    """A rule with its calibration cases, and decisions with labels: first like these, then wrong too often."""
    draw(2000, seed=1).save(tmp_path / "val.npz")
    rule = choose_threshold(Predictions.load(tmp_path / "val.npz"), 0.95)
    with_rule(rule).save(tmp_path / "policy.json")
    cases = joined(draw(400, seed=2, ids=True), draw(400, seed=3, flipped=0.3, ids=True))
    cases.save(tmp_path / "new.npz")
    cases.subset(range(400)).save(tmp_path / "fine.npz")
    route_file(with_rule(rule), tmp_path / "new.npz", tmp_path / "decisions.csv")
    labels = [f"{name},{cases.class_names[y]}\n" for name, y in zip(cases.ids, cases.targets, strict=True)]
    (tmp_path / "labels.csv").write_text("id,target\n" + "".join(labels))
    return tmp_path


def test_fine_is_0_and_an_alarm_is_1(calibrant, files):
    code, out, err = calibrant("monitor", files / "fine.npz", "--policy", files / "policy.json")
    assert (code, err) == (0, "")
    assert "No alarm" in out
    command = ("monitor", files / "decisions.csv", "--policy", files / "policy.json", "--labels", files / "labels.csv")
    code, out, err = calibrant(*command, "--reference", files / "val.npz", "-o", files / "monitor.html")
    assert code == 1
    assert err == "calibrant: ALARM: the promised accuracy of 95 % is no longer kept.\n"
    assert "drifting since about case" in out
    assert (files / "monitor.html").stat().st_size > 10**6


def test_json_says_when_and_what(calibrant, files):
    command = ("monitor", files / "decisions.csv", "--policy", files / "policy.json", "--labels", files / "labels.csv")
    code, out, _ = calibrant(*command, "--json")
    content = json.loads(out)
    assert code == 1
    assert content["promise_broken"] is True
    assert 350 < content["since"]["case"] < 450
    assert content["since"]["id"].startswith("case-")
    assert content["page"] is None


def test_a_log_names_its_own_rule(calibrant, files):

    policy = Policy.load(files / "policy.json")
    with DecisionLog(files / "log.db", model="0" * 64, class_names=policy.class_names) as log:
        log.append([Decision("a", 0, 0.999, True)], policy=log.add_policy(policy))
        log.label("a", "a")
    code, out, _ = calibrant("monitor", files / "log.db")
    assert code == 0
    assert "1 cases, 1 automated, 1 of these labelled." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decisions.csv",), "Name it: --policy policy.json"),
        (("missing.db",), "does not exist"),
        (
            ("decisions.csv", "--policy", "policy.json", "--false-alarms", "5"),
            "level must",
        ),
    ],
)
def test_bad_input_is_2(calibrant, files, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    code, _, err = calibrant("monitor", *arguments)
    assert code == 2
    assert message in err


_MEASURED = """
import sys
from calibrant.cli import run
code = run(sys.argv[1:])
sys.stdout.flush()
# Not getrusage: its maximum has that of the process that started this one.
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


def _monitored(python, *arguments):
    """Exit code, complaints and the most memory of a real process, in kB."""
    command = [python, "-c", _MEASURED, "monitor", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    *said, memory = done.stderr.splitlines(keepends=True)
    return done.returncode, "".join(said), int(memory)


@pytest.mark.parametrize("column", ["note", "id", "time"])
def test_one_long_cell_does_not_make_every_row_as_long(python, tmp_path, column):
    """As an array of text the column would take 131,000 * 4 bytes for each of 5,001 rows, 2.6 GB."""
    with_rule(RoutingRule(0.9, 2, target_accuracy=0.97, confidence=0.95)).save(tmp_path / "policy.json")
    rows = [
        {"id": i, "decision": "auto", "predicted": 0, "confidence": 0.99, "note": "", "time": i} for i in range(5001)
    ]
    rows[7][column] = "x" * 131_000
    with (tmp_path / "d.csv").open("w", newline="") as lines:
        table = csv.DictWriter(lines, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    groups = ["--groups", "note"] if column == "note" else []
    code, said, memory = _monitored(python, tmp_path / "d.csv", "--policy", tmp_path / "policy.json", *groups)
    assert (code, said) == (0, "")
    assert memory < 1_000_000


def test_a_log_with_many_names_is_watched_all_the_same(python, calibrant, tmp_path):
    """A hundred new names with every case: as columns they would be 200,000 * 2,000 values."""
    rule = RoutingRule(0.9, 2, target_accuracy=0.97, confidence=0.95)
    with DecisionLog(tmp_path / "d.db", model="0" * 64, n_classes=2) as log:
        digest = log.add_policy(with_rule(rule))
        for start in range(0, 2000, 500):
            facts = [{"site": "north", **{f"{i}-{k}": 1 for k in range(99)}} for i in range(start, start + 500)]
            log.append(
                [Decision(f"{start + i}", 0, 0.99, True, extras=own) for i, own in enumerate(facts)], policy=digest
            )
        with pytest.raises(InvalidInput, match="extras of the decision log must have at most 1,000 names"):
            Stream.of_log(log)
        assert set(Stream.of_log(log, extras=["site"]).extras) == {"site"}
    for groups in ([], ["--groups", "site"]):
        code, said, memory = _monitored(python, tmp_path / "d.db", *groups)
        assert (code, said) == (0, "")
        assert memory < 1_000_000
    code, _, err = calibrant("monitor", tmp_path / "d.db", "--groups", "sit")
    assert code == 2
    assert "groups must" in err


def test_a_rule_of_weighted_cases_is_compared_with_the_cases_it_was_chosen_on(calibrant, tmp_path):
    """The file has few hard cases and the stream has many, as the weights say. Nothing has changed."""

    def mixed(n, seed, share):
        hard = np.random.default_rng(seed).random(n) < share
        cases = draw(n, seed=seed, sharpness=np.where(hard, 1.5, 6.0)[:, None])
        weights = np.where(hard, 0.5 / share, 0.5 / (1 - share))
        names = {"class_names": cases.class_names, "extras": {"weight": weights}}
        return Predictions.from_logits(cases.scores, cases.targets, **names)

    mixed(3000, 1, 0.1).save(tmp_path / "val.npz")
    mixed(1500, 2, 0.5).save(tmp_path / "new.npz")
    chosen = ("--target-accuracy", "0.9", "--weights", "weight", "--seed", "7", "--raw", "-o", tmp_path / "p.json")
    assert calibrant("route", "fit", tmp_path / "val.npz", *chosen)[0] == 0
    policy = Policy.load(tmp_path / "p.json")
    assert (policy.rule.weight_column, policy.rule.weight_seed) == ("weight", 7)
    command = ("monitor", tmp_path / "new.npz", "--policy", tmp_path / "p.json", "--reference", tmp_path / "val.npz")
    code, out, err = calibrant(*command)
    assert (code, err) == (0, ""), out
    whole = Predictions.load(tmp_path / "val.npz")
    with pytest.raises(InvalidInput, match="drawn by the column 'weight', but the reference has 3,000 cases"):
        watch(Stream.of_predictions(policy, mixed(50, 3, 0.5)), reference=whole)


@pytest.fixture
def two_sites(tmp_path):
    """A log of 60 days: site a keeps the promise, and site b, which nothing was promised for, does not."""
    evidence = (GroupEvidence("a", 500, 400, 1, True), GroupEvidence("b", 20, 10, 1, False))
    rule = RoutingRule(0.9, 2, target_accuracy=0.9, confidence=0.95, groups="site", group_evidence=evidence)
    with DecisionLog(tmp_path / "log.db", model="0" * 64, n_classes=2) as log:
        digest = log.add_policy(with_rule(rule))
        for day in range(60):
            names = [f"{day}-{i}" for i in range(10)]
            rows = [Decision(id_, 0, 0.95, True, extras={"site": "ab"[i % 2]}) for i, id_ in enumerate(names)]
            log.append(rows, policy=digest, time=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day))
            # Site a becomes bad on day 30, site b always was.
            log.label_all({id_: int(i % 2 == 1 or (day >= 30 and i < 4)) for i, id_ in enumerate(names)})
    return tmp_path / "log.db"


def test_a_period_or_a_group_is_watched_by_itself(calibrant, two_sites):
    def look(*arguments):
        code, out, _ = calibrant("monitor", two_sites, *arguments, "--json")
        return code, json.loads(out)

    code, content = look()
    assert code == 1
    assert content["cases"] == 600
    code, content = look("--where", "site=a", "--until", "2026-01-31")
    assert (code, content["cases"]) == (0, 150)
    assert [(signal["group"], signal["cases"], signal["level"]) for signal in content["signals"]] == [
        ("site a", 150, 0.05)
    ]
    code, content = look("--where", "site=a", "--since", "2026-01-31T00:00:00+00:00")
    assert (code, content["cases"]) == (1, 150)
    # Nothing was promised for site b: it is described, however bad it is.
    code, content = look("--where", "site=b")
    assert (code, content["signals"]) == (0, [])
    assert [(share["group"], share["cases"], share["seen"]) for share in content["described"]] == [("site b", 300, 0.0)]
    page = two_sites.with_name("page.html")
    assert "described, not tested" in calibrant("monitor", two_sites, "--where", "site=b", "-o", page)[1]
    assert "site b" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--where", "site"), "where must be COLUMN=VALUE"),
        (("--where", "sit=a"), "Did you mean 'site'"),
        (("--where", "site=c"), "None of the 600 cases is selected"),
        (("--since", "2027-01-01"), "None of the 600 cases is selected"),
        (("--since", "soon"), "since"),
    ],
)
def test_periods_and_groups_that_cannot_be_chosen_are_2(calibrant, two_sites, arguments, message):
    code, _, err = calibrant("monitor", two_sites, *arguments)
    assert code == 2
    assert message in err


def test_a_period_needs_times(calibrant, files):
    code, _, err = calibrant("monitor", files / "fine.npz", "--policy", files / "policy.json", "--since", "2026-01-01")
    assert code == 2
    assert "have no times" in err


def test_a_group_is_compared_with_the_same_group_of_the_reference(calibrant, tmp_path):
    """Site b is harder than site a, as it was among the calibration cases."""

    def cases(n, seed):
        site = np.where(np.random.default_rng(seed).random(n) < 0.8, "a", "b")
        drawn = draw(n, seed=seed, sharpness=np.where(site == "a", 6.0, 1.5)[:, None])
        names = {"class_names": drawn.class_names, "extras": {"site": site}}
        return Predictions.from_logits(drawn.scores, drawn.targets, **names)

    cases(3000, 1).save(tmp_path / "val.npz")
    cases(2000, 2).save(tmp_path / "new.npz")
    with_rule(choose_threshold(Predictions.load(tmp_path / "val.npz"), 0.9)).save(tmp_path / "policy.json")
    command = ("monitor", tmp_path / "new.npz", "--policy", tmp_path / "policy.json", "--where", "site=b")
    code, out, _ = calibrant(*command, "--reference", tmp_path / "val.npz", "--json")
    content = json.loads(out)
    assert code == 0
    assert [signal["about"] for signal in content["signals"]] == ["share automated", "confidence", "predicted classes"]
    assert content["described"][0]["group"] == "site b"
