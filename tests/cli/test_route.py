import csv
import json

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, RoutingRule, choose_threshold, sample_by_weights


def draw(n, *, seed, temperature=1.0, **extra):
    rng = np.random.default_rng(seed)
    z = 8.0 * rng.normal(size=(n, 3))
    return Predictions.from_logits(temperature * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), **extra)


@pytest.fixture
def val(tmp_path):
    draw(3000, seed=0, class_names=["a", "b", "c"]).save(tmp_path / "val.npz")
    return tmp_path / "val.npz"


def fit(calibrant, val, *arguments):
    code, out, err = calibrant("route", "fit", val, "--target-accuracy", 0.97, *arguments)
    assert (code, err) == (0, "")
    return out, Policy.load(val.with_name("policy.json")).rule


def test_fit_apply_check(calibrant, val, tmp_path):
    out, rule = fit(calibrant, val)
    assert f"Threshold: {rule.threshold:.6f}" in out
    assert "accuracy of at least 97 % with 95 % confidence" in out
    assert "Of 1,000 cases a person sees" in out
    assert rule.class_names == ("a", "b", "c")
    fresh = draw(800, seed=1, ids=np.array([f"x{i}" for i in range(800)]))
    fresh.save(tmp_path / "new.npz")
    code, out, _ = calibrant(
        "route", "apply", tmp_path / "policy.json", tmp_path / "new.npz", "-o", tmp_path / "out.csv"
    )
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    automated = sum(row["decision"] == "auto" for row in rows)
    assert code == 0
    assert f"{automated} of 800 cases are automated" in out
    assert [row["id"] for row in rows] == fresh.ids.tolist()
    assert [row["class"] for row in rows] == ["abc"[k] for k in fresh.predicted]
    code, out, err = calibrant("route", "check", tmp_path / "policy.json", tmp_path / "new.npz")
    assert (code, err) == (0, "")
    assert f"{automated}" in out
    assert "The promised accuracy of 97 %" in out


def test_one_rounding_everywhere(calibrant, tmp_path):
    # 1,241 of 2,000 is 62.05 %.
    confidence = np.where(np.arange(2000) < 1241, 0.999, 0.4)
    p = np.stack([confidence, (1 - confidence) * 0.5, (1 - confidence) * 0.5], axis=1)
    targets = np.where(np.arange(2000) < 1241, 0, np.arange(2000) % 3)
    Predictions.from_probabilities(p, targets).save(tmp_path / "val.npz")
    _, fitted, _ = calibrant("route", "fit", tmp_path / "val.npz")
    _, applied, _ = calibrant(
        "route", "apply", tmp_path / "policy.json", tmp_path / "val.npz", "-o", tmp_path / "out.csv"
    )
    assert "Automated: 1,241 of 2,000 cases (62.1 %)" in fitted
    assert "1,241 of 2,000 cases are automated (62.1 %)" in applied


def test_permuted_columns_are_read_by_name_by_apply_and_check_alike(calibrant, val, tmp_path):
    fit(calibrant, val)
    fresh = draw(800, seed=1, class_names=["a", "b", "c"])
    turned = Predictions.from_logits(
        fresh.logits[:, [2, 0, 1]], np.array([1, 2, 0])[fresh.targets], class_names=["c", "a", "b"]
    )
    found = {}
    for name, predictions in (("same", fresh), ("turned", turned)):
        predictions.save(tmp_path / f"{name}.npz")
        source, out = tmp_path / f"{name}.npz", tmp_path / f"{name}.csv"
        assert calibrant("route", "apply", tmp_path / "policy.json", source, "-o", out)[0] == 0
        code, table, _ = calibrant("route", "check", tmp_path / "policy.json", source)
        found[name] = code, table, out.read_text()
    assert found["same"] == found["turned"]


def test_inputs_are_never_overwritten(calibrant, val, tmp_path):
    fit(calibrant, val)
    draw(20, seed=1, class_names=["a", "b", "c"]).save(tmp_path / "new.csv")
    rule = tmp_path / "policy.csv"
    rule.hardlink_to(tmp_path / "policy.json")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in [
        ("apply", tmp_path / "policy.json", tmp_path / "new.csv", "-o", tmp_path / "new.csv"),
        ("apply", tmp_path / "policy.json", tmp_path / "new.csv", "-o", rule),
        ("fit", val, "-o", val),
        ("fit", val, "--cost-matrix", tmp_path / "new.csv", "--cost-review", 2, "-o", tmp_path / "new.csv"),
    ]:
        code, _, err = calibrant("route", *arguments)
        assert code == 2, arguments
        assert "which is read here" in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_predictions_of_a_run_put_the_rule_into_the_run(calibrant, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "recipe.toml").touch()
    draw(3000, seed=0).save(tmp_path / "predictions" / "val.npz")
    assert calibrant("route", "fit", tmp_path / "predictions" / "val.npz")[0] == 0
    assert [path.name for path in tmp_path.rglob("policy.json")] == ["policy.json"]
    assert (tmp_path / "policy.json").is_file()


def test_a_rule_beside_a_run_still_takes_the_calibrator_of_the_run(calibrant, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "recipe.toml").touch()
    draw(3000, seed=0).save(tmp_path / "predictions" / "val.npz")
    scaling = TemperatureScaling().fit(draw(500, seed=1))
    Policy(3, calibrator=scaling).save(tmp_path / "policy.json")
    assert calibrant("route", "fit", tmp_path, "--target-accuracy", 0.95, "--out", tmp_path / "other.json")[0] == 0
    assert Policy.load(tmp_path / "other.json").calibrator.temperature_ == scaling.temperature_
    code, _, err = calibrant("route", "fit", tmp_path, "--policy", tmp_path / "missing.json")
    assert (code, "missing.json" in err) == (2, True)


def test_check_fails_with_one(calibrant, val, tmp_path):
    fit(calibrant, val)
    fresh = draw(500, seed=1)
    wrong = np.where(np.arange(500) % 5 == 0, (fresh.targets + 1) % 3, fresh.targets)
    Predictions.from_logits(fresh.logits, wrong).save(tmp_path / "bad.npz")
    code, out, err = calibrant("route", "check", tmp_path / "policy.json", tmp_path / "bad.npz")
    assert code == 1
    assert "NO" in out
    assert err.startswith("calibrant: the promised accuracy of 97 % was not kept: all ")


def test_a_rule_that_automates_nothing_is_not_said_to_hold(calibrant, val, tmp_path):
    rule = RoutingRule(threshold=None, n_classes=3, target_accuracy=0.9, confidence=0.95)
    Policy(3, rule=rule).save(tmp_path / "policy.json")
    draw(50, seed=1).save(tmp_path / "new.npz")
    arguments = ("route", "check", tmp_path / "policy.json", tmp_path / "new.npz")
    code, out, _ = calibrant(*arguments)
    assert code == 0
    assert "No case is automated: 50 cases say nothing about the promised accuracy." in out
    assert "holds" not in out
    assert "yes" not in out
    assert json.loads(calibrant(*arguments, "--json")[1])["tested"] is False


def test_a_promise_that_is_missed_by_chance_is_not_broken(calibrant, tmp_path):
    rule = RoutingRule(threshold=0.9, n_classes=2, target_accuracy=0.9, confidence=0.95)
    Policy(2, rule=rule).save(tmp_path / "policy.json")
    near = Predictions.from_probabilities(np.tile([0.95, 0.05], (100, 1)), np.repeat([0, 1], [88, 12]))
    near.save(tmp_path / "near.npz")
    arguments = ("route", "check", tmp_path / "policy.json", tmp_path / "near.npz")
    code, out, _ = calibrant(*arguments)
    assert code == 0
    assert "by no more than chance" in out


def test_a_check_on_the_cases_of_the_fit_is_called_no_test(calibrant, val, tmp_path):
    fit(calibrant, val)
    code, _, err = calibrant("route", "check", tmp_path / "policy.json", val)
    assert code == 0
    assert err == (
        f"calibrant: warning: the rule of this policy saw cases of {val} when fitted: "
        "these are no test of a promise. Use new cases.\n"
    )


def test_a_rule_that_automates_nothing_replaces_another_aloud(calibrant, val, tmp_path):
    fit(calibrant, val)
    few = tmp_path / "few.npz"
    draw(60, seed=0).save(few)
    code, _, err = calibrant("route", "fit", few, "-o", tmp_path / "policy.json")
    assert code == 0
    assert err.startswith(f"calibrant: warning: {tmp_path / 'policy.json'} automated some cases; the new policy")
    assert err.count("\n") == 1
    assert not Policy.load(tmp_path / "policy.json").automates
    assert calibrant("route", "fit", few, "-o", tmp_path / "policy.json")[2] == ""


@pytest.fixture(params=["vector", "dirichlet"])
def calibrated(calibrant, tmp_path, request):
    """A policy whose calibrator was fitted on one file and whose rule was chosen on another."""
    for seed, name in enumerate(("fit", "held")):
        draw(3000, seed=seed, temperature=3.0, class_names=["a", "b", "c"]).save(tmp_path / f"{name}.npz")
    arguments = ("--apply", tmp_path / "held.npz", "--method", request.param, "-o", tmp_path / "made.npz")
    assert calibrant("calibrate", tmp_path / "fit.npz", *arguments)[0] == 0
    arguments = ("--policy", tmp_path / "made.policy.json", "--target-accuracy", 0.97)
    code, out, err = calibrant("route", "fit", tmp_path / "held.npz", *arguments)
    assert (code, err) == (0, "")
    assert f"Scores are calibrated by the {request.param} map." in out
    return tmp_path / "policy.json"


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_raw_scores_pass_the_calibrator_of_the_policy(calibrant, calibrated, tmp_path, kind):
    raw = draw(500, seed=5, temperature=3.0, class_names=["a", "b", "c"])
    if kind == "probabilities":
        raw = Predictions.from_probabilities(raw.probabilities, raw.targets, class_names=["a", "b", "c"])
    # Columns in another order: they are read by their names before the calibrator sees them.
    order = [2, 0, 1]
    names = ["c", "a", "b"]
    scores = (raw.logits if kind == "logits" else raw.probabilities)[:, order]
    targets = np.array([order.index(target) for target in raw.targets])
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probabilities
    make(scores, targets, class_names=names).save(tmp_path / "new.npz")
    policy, arguments = Policy.load(calibrated), (calibrated, tmp_path / "new.npz")
    apply, check = ("route", "apply", *arguments, "-o", tmp_path / "d.csv"), ("route", "check", *arguments, "--json")
    if policy.calibrator.method == "vector" and kind == "probabilities":
        for command in (apply, check):
            code, _, err = calibrant(*command)
            assert code == 2, command
            assert "predictions must be logits, as vector scaling was fitted on, got probabilities" in err
        assert not (tmp_path / "d.csv").exists()
        return
    logits = raw.logits if kind == "logits" else np.log(np.maximum(raw.probabilities.astype(float), 5e-324))
    expected = policy.rule.route(policy.calibrator.transform(logits))
    code, _, err = calibrant(*apply)
    rows = list(csv.DictReader((tmp_path / "d.csv").open()))
    assert (code, err) == (0, "")
    assert [row["decision"] for row in rows] == expected.decisions
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], expected.confidence, rtol=1e-9)
    code, out, err = calibrant(*check)
    assert (code, err) == (0, "")
    assert json.loads(out)["groups"][0]["automated"] == expected.automate.sum()


def test_calibrated_scores_are_refused_and_seen_cases_are_named(calibrant, calibrated, tmp_path):
    # Also if another calibrator made them.
    other = ("--apply", tmp_path / "held.npz", "-o", tmp_path / "other.npz")
    assert calibrant("calibrate", tmp_path / "fit.npz", *other)[0] == 0
    for command in (("check",), ("apply", "-o", tmp_path / "d.csv")):
        code, _, err = calibrant("route", command[0], calibrated, tmp_path / "other.npz", *command[1:])
        assert (code, "calibrated already" in err) == (2, True)
        code, _, err = calibrant("route", command[0], calibrated, tmp_path / "made.npz", *command[1:])
        assert (code, "calibrated already" in err) == (2, True)
    code, _, err = calibrant("route", "check", calibrated, tmp_path / "held.npz")
    assert (code, "the rule of this policy saw cases of" in err) == (0, True)
    for command in ("check", "shortlist"):
        code, _, err = calibrant("route", command, calibrated, tmp_path / "fit.npz")
        assert (code, "the calibrator of this policy saw cases of" in err) == (0, True)
    code, _, err = calibrant("route", "apply", calibrated, tmp_path / "held.npz", "-o", calibrated)
    assert code == 2
    assert "which is read here" in err


def test_scores_that_do_not_say_what_they_are(calibrant, val, tmp_path):
    fit(calibrant, val)
    (tmp_path / "new.csv").write_text("target,score_a,score_b,score_c\n1,0,9,0\n")
    for command in (["apply", "-o", tmp_path / "out.csv"], ["check"]):
        arguments = [command[0], tmp_path / "policy.json", tmp_path / "new.csv", *command[1:]]
        code, _, err = calibrant("route", *arguments)
        assert (code, "--kind logits" in err) == (2, True)
        assert calibrant("route", *arguments, "--kind", "logits")[0] == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("0,auto,1,b,0.99")


def test_too_few_cases(calibrant, tmp_path):
    draw(60, seed=0).save(tmp_path / "val.npz")
    code, out, _ = calibrant("route", "fit", tmp_path / "val.npz")
    rule = Policy.load(tmp_path / "policy.json").rule
    assert code == 0
    assert "No threshold can be promised" in out
    assert f"{rule.evidence.cases_needed:,} cases would be needed" in out
    assert "Threshold: nothing is automated" in out
    assert rule.threshold is None


def test_per_class_and_costs(calibrant, val):
    out, rule = fit(calibrant, val, "--per-class")
    assert len(rule.class_thresholds) == 3
    assert "Threshold of b: 0." in out
    val.with_name("policy.json").unlink()
    out, rule = fit(calibrant, val, "--cost-error", 100, "--cost-review", 1)
    assert f"Cost per 1,000 cases: {rule.costs.per_1000:.1f}" in out
    val.with_name("policy.json").unlink()
    val.with_name("costs.csv").write_text("true,b,a,c\na,100,0,100\nb,0,100,100\nc,100,100,0\n")
    _, by_matrix = fit(calibrant, val, "--cost-matrix", val.with_name("costs.csv"), "--cost-review", 1)
    assert by_matrix.threshold == rule.threshold
    assert by_matrix.costs.per_1000 == rule.costs.per_1000


def test_calibrate_splits_the_cases(calibrant, tmp_path):
    draw(4000, seed=0, temperature=3.0).save(tmp_path / "val.npz")
    out, rule = fit(calibrant, tmp_path / "val.npz", "--calibrate")
    first = Policy.load(tmp_path / "policy.json").calibrator.temperature_
    assert first == pytest.approx(3.0, rel=0.1)
    assert rule.evidence.cases == 3600
    assert f"Scores are calibrated by the temperature {first:.4f}." in out
    code, _, err = calibrant(
        "route", "fit", tmp_path / "val.npz", "--target-accuracy", 0.97, "--calibrate", "--seed", 1
    )
    assert code == 0
    assert "2 different rules" in err
    assert Policy.load(tmp_path / "policy.json").calibrator.temperature_ != first


def test_json(calibrant, val, tmp_path):
    out, rule = fit(calibrant, val, "--json")
    content = json.loads(out)
    assert content["rule"]["threshold"] == rule.threshold
    assert content["rule"]["automation_rate"] == rule.automation_rate
    assert content["risk_coverage"][0]["coverage"] == 1.0
    _, out, _ = calibrant("route", "apply", tmp_path / "policy.json", val, "-o", tmp_path / "o.parquet", "--json")
    assert json.loads(out)["cases"] == 3000


def test_a_run_folder(calibrant, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "recipe.toml").touch()
    draw(3000, seed=0).save(tmp_path / "predictions" / "val.npz")
    draw(3000, seed=1).save(tmp_path / "predictions" / "test.npz")
    assert calibrant("route", "fit", tmp_path, "--target-accuracy", 0.95)[0] == 0
    assert calibrant("route", "check", tmp_path / "policy.json", tmp_path)[0] == 0
    _, out, _ = calibrant("route", "apply", tmp_path / "policy.json", tmp_path, "-o", tmp_path / "o.csv", "--json")
    assert json.loads(out)["cases"] == 3000
    test = tmp_path / "predictions" / "test.npz"
    code, _, err = calibrant("route", "apply", tmp_path / "policy.json", tmp_path, "-o", test)
    assert (code, "which is read here" in err) == (2, True)


def test_bad_input(calibrant, val, tmp_path):
    fit(calibrant, val)
    rule = tmp_path / "policy.json"
    Predictions.from_logits(np.eye(4), [0, 1, 2, 3]).save(tmp_path / "four.npz")
    (tmp_path / "other.json").write_text("{}")
    for arguments, message in [
        (
            ["apply", rule, tmp_path / "four.npz", "-o", tmp_path / "o.csv"],
            "made for 3 classes and cannot be applied to 4",
        ),
        (["apply", tmp_path / "other.json", val, "-o", tmp_path / "o.csv"], "be a policy"),
        (["fit", val, "--cost-error", 2], "both costs"),
        (["fit", val, "--calibrate", "--raw"], "Choose one of --calibrate, --policy and --raw"),
        (["fit", val, "--calibrate", "--policy", rule], "Choose one of --calibrate, --policy and --raw"),
        (["fit", tmp_path], "must be a file"),
        (["binary", val, "-o", tmp_path / "binary.json"], "must have two classes, got 3"),
    ]:
        code, _, err = calibrant("route", *arguments)
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "o.csv").exists()


def test_binary_promises_a_sensitivity(calibrant, tmp_path):
    import json

    from calibrant.decisions import choose_binary_rule

    rng = np.random.default_rng(0)
    ill = (rng.random(500) < 0.4).astype(int)
    cases = Predictions.from_binary(4.0 * ill - 2 + rng.normal(size=500), ill, kind="logits")
    cases.save(tmp_path / "val.npz")
    command = ("route", "binary", tmp_path / "val.npz", "--sensitivity", 0.9, "-o", tmp_path / "binary.json")
    code, out, _ = calibrant(*command)
    assert code == 0
    assert "A sensitivity of at least 90 % is promised with 95 % confidence" in out
    found = Policy.load(tmp_path / "binary.json").rule
    assert found == choose_binary_rule(Predictions.load(tmp_path / "val.npz"), sensitivity=0.9)
    code, out, _ = calibrant(*command, "--json")
    assert json.loads(out)["rule"]["low"] == found.low


def test_the_positive_class_goes_by_name_in_the_order_of_the_policy(calibrant, tmp_path):
    rng = np.random.default_rng(0)
    ill = (rng.random(500) < 0.4).astype(int)
    scores = np.stack([np.zeros(500), 4.0 * ill - 2 + rng.normal(size=500)], axis=1)
    Predictions.from_logits(scores[:, ::-1], 1 - ill, class_names=["ill", "well"]).save(tmp_path / "val.npz")
    Policy(2, class_names=("well", "ill")).save(tmp_path / "policy.json")
    rules = []
    for policy in ([], ["--policy", tmp_path / "policy.json"]):
        command = ("route", "binary", tmp_path / "val.npz", "--positive", "ill", *policy, "-o", tmp_path / "out.json")
        code, out, _ = calibrant(*command)
        assert (code, out.partition(".")[0]) == (0, "Positive is ill")
        rules.append(Policy.load(tmp_path / "out.json").rule)
    assert rules[0].low == rules[1].low


def test_a_policy_without_a_rule_has_no_promise_to_check(calibrant, val, tmp_path):
    Policy(3, class_names=("a", "b", "c")).save(tmp_path / "policy.json")
    code, _, err = calibrant("route", "check", tmp_path / "policy.json", val)
    assert code == 2
    assert "Fit a rule first" in err


def test_weights_draw_the_cases_of_a_rule(calibrant, tmp_path):
    """The rule says so, and a check on the same file is called no test of its promise."""
    rng = np.random.default_rng(3)
    z = 8.0 * rng.normal(size=(3000, 2))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    path = tmp_path / "val.npz"
    Predictions.from_logits(z, y, extras={"w": np.where(y == 0, 3.0, 1.0)}).save(path)
    _, rule = fit(calibrant, path, "--weights", "w", "--seed", 5)
    drawn = sample_by_weights(Predictions.load(path), "w", seed=5)
    assert rule.threshold == choose_threshold(drawn, 0.97).threshold
    assert f"It was chosen on {len(drawn):,} of 3,000 cases, drawn by 'w'" in rule.note
    assert rule.fitted_on is not None
    assert "these are no test of a promise" in calibrant("route", "check", tmp_path / "policy.json", path)[2]
    code, _, err = calibrant("route", "fit", path, "--weights", "u")
    assert code == 2
    assert "weights must" in err


def test_calibration_and_threshold_never_share_a_cluster(calibrant, tmp_path):
    patient = np.arange(4000) // 8
    draw(4000, seed=4, temperature=3.0, extras={"patient": patient}).save(tmp_path / "val.npz")
    code, _, err = calibrant(
        "route", "fit", tmp_path / "val.npz", "--calibrate", "--clusters", "patient", "--target-accuracy", 0.9
    )
    assert (code, err) == (0, "")
    policy, cases = Policy.load(tmp_path / "policy.json"), Predictions.load(tmp_path / "val.npz")
    seen = set(cases.extras["patient"]) - set(policy.unseen(cases).extras["patient"])
    assert policy.rule.clusters == 500 - len(seen)
    assert policy.rule.evidence.cases == 4000 - 8 * len(seen)
    assert 0 < len(seen) < 100


def test_check_of_a_rule_for_clusters_refuses_cases_without_their_column(calibrant, tmp_path):
    draw(4000, seed=4, extras={"patient": np.arange(4000) // 2}).save(tmp_path / "val.npz")
    calibrant("route", "fit", tmp_path / "val.npz", "--clusters", "patient", "--target-accuracy", 0.9)
    draw(1000, seed=5).save(tmp_path / "new.npz")
    code, _, err = calibrant("route", "check", tmp_path / "policy.json", tmp_path / "new.npz")
    assert code == 2
    assert "clusters must" in err


def test_a_threshold_per_group(calibrant, tmp_path):
    site = np.array(["a", "b"])[np.arange(3000) % 2]
    draw(3000, seed=0, extras={"site": site}).save(tmp_path / "val.csv")
    fitted = ("route", "fit", tmp_path / "val.csv", "--target-accuracy", 0.95, "--per-group", "site")
    code, out, err = calibrant(*fitted, "--search", "split", "--reserve", 0.1)
    assert (code, err) == (0, "")
    assert "in 2 of 2 groups of 'site' (a, b)" in out
    policy = tmp_path / "policy.json"
    new = np.array(["a", "b", "c"])[np.arange(900) % 3]
    draw(900, seed=1, extras={"site": new}).save(tmp_path / "new.csv")
    code, out, _ = calibrant("route", "apply", policy, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert code == 0
    assert "300 cases have a group that the rule does not know." in out
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert {row["decision"] for row in rows[2::3]} == {"review"}
    assert {row["decision"] for row in rows[0::3]} == {"auto", "review"}
    code, out, _ = calibrant("route", "check", policy, tmp_path / "new.csv")
    assert code == 0
    assert "site a" in out
    draw(900, seed=1).save(tmp_path / "bare.csv")
    code, _, err = calibrant("route", "apply", policy, tmp_path / "bare.csv", "-o", tmp_path / "none.csv")
    assert code == 2
    assert "must have the column 'site', which decides the threshold" in err
    assert not (tmp_path / "none.csv").exists()


def test_a_class_and_a_confidence_from_a_table(calibrant, tmp_path):
    rng = np.random.default_rng(0)
    for name, n in (("val", 2000), ("new", 900)):
        confidence = np.round(1 - 0.5 * rng.random(n) ** 2, 2)
        predicted = rng.choice(["cat", "dog", "owl"], size=n)
        right = rng.random(n) < confidence
        lines = [
            f"{k},{p},{c},{p if ok else 'cat' if p != 'cat' else 'dog'}"
            for k, (p, c, ok) in enumerate(zip(predicted, confidence, right, strict=True))
        ]
        (tmp_path / f"{name}.csv").write_text("id,predicted,confidence,target\n" + "\n".join(lines) + "\n")
    code, out, err = calibrant("route", "fit", tmp_path / "val.csv", "--target-accuracy", 0.9)
    assert (code, err) == (0, "")
    assert "accuracy of at least 90 % with 95 % confidence" in out
    policy = tmp_path / "policy.json"
    code, out, err = calibrant("route", "apply", policy, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    threshold = Policy.load(policy).rule.threshold
    assert all((row["decision"] == "auto") == (float(row["confidence"]) >= threshold) for row in rows)
    assert {row["class"] for row in rows} == {"cat", "dog", "owl"}
    code, out, _ = calibrant("route", "check", policy, tmp_path / "new.csv")
    assert code == 0


def test_a_score_is_chosen_on_the_cases_of_the_calibrator(calibrant, tmp_path):
    draw(3000, seed=0).save(tmp_path / "val.npz")
    arguments = ("--calibrate", "--score", "pnorm4", "--target-accuracy", 0.9)
    code, _, err = calibrant("route", "fit", tmp_path / "val.npz", *arguments)
    assert (code, err) == (0, "")
    policy = Policy.load(tmp_path / "policy.json")
    assert policy.rule.score == "pnorm4"
    assert policy.rule.evidence.cases == 2700
    code, _, err = calibrant("route", "fit", tmp_path / "val.npz", "--score", "loudness")
    assert code == 2
    assert "score must be 'probability', 'margin'" in err


@pytest.mark.parametrize(("column", "flags"), [("probability", ["--positive", "spam"]), ("p_spam", [])])
def test_new_cases_of_two_classes_need_no_labels(calibrant, tmp_path, column, flags):
    probabilities = np.linspace(0.01, 0.99, 400)
    lines = [f"{p:.4f},{'spam' if p > 0.5 else 'ham'}" for p in probabilities]
    (tmp_path / "labelled.csv").write_text("\n".join([f"{column},label", *lines]) + "\n")
    (tmp_path / "new.csv").write_text(f"{column}\n0.9\n0.2\n")
    policy = tmp_path / "policy.json"
    fit = "route", "fit", tmp_path / "labelled.csv", *flags, "--target-accuracy", 0.9, "-o", policy
    assert calibrant(*fit)[0] == 0
    code, _, err = calibrant("route", "apply", policy, tmp_path / "new.csv", *flags, "-o", tmp_path / "decided.csv")
    assert code == 0, err
    with (tmp_path / "decided.csv").open() as handle:
        assert [row["class"] for row in csv.DictReader(handle)] == ["spam", "ham"]


def test_a_policy_of_another_model_beside_the_predictions_is_named_with_the_flags(calibrant, tmp_path):
    rng = np.random.default_rng(0)
    for name, classes in (("five", 5), ("two", 2)):
        logits = rng.normal(size=(600, classes)) * 3
        Predictions.from_logits(logits, logits.argmax(axis=1)).save(tmp_path / f"{name}.npz")
    assert calibrant("route", "fit", tmp_path / "five.npz", "--calibrate")[0] == 0
    code, _, err = calibrant("route", "fit", tmp_path / "two.npz")
    assert code == 2
    assert (
        f"{tmp_path / 'policy.json'}, whose calibrator is used: this rule or calibrator was made for 5 classes" in err
    )
    assert "--out FILE" in err
    assert calibrant("route", "fit", tmp_path / "two.npz", "--raw")[0] == 0
    # That policy has no calibrator, so nothing of it is used.
    assert calibrant("route", "fit", tmp_path / "five.npz", "--target-accuracy", "0.9")[0] == 0


@pytest.mark.parametrize("command", [("route", "check", "policy.json", "only.csv"), ("monitor", "only.csv")])
def test_labelled_cases_of_one_of_two_classes_are_read_with_the_names_of_the_policy(
    calibrant, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0).random(3000)
    labels = np.where(np.random.default_rng(1).random(3000) < chance, "spam", "ham")
    lines = [f"{label},{value}" for label, value in zip(labels, chance, strict=True)]
    (tmp_path / "fit.csv").write_text("\n".join(["label,p_spam", *lines]))
    (tmp_path / "only.csv").write_text(
        "\n".join(["label,p_spam", *(line for line in lines if line.startswith("spam"))])
    )
    assert calibrant("route", "fit", "fit.csv", "--target-accuracy", "0.8", "--raw")[0] == 0
    if command[0] == "monitor":
        command += ("--policy", "policy.json")
    code, out, err = calibrant(*command)
    assert code in (0, 1), err
    assert "automated" in out
