def test_only_cases_that_the_rule_has_seen_are_warned_of(tmp_path, draw, calibrant):
    for seed, name in enumerate(("val", "test")):
        draw(400, seed=seed).save(tmp_path / f"{name}.npz")
    val, test, made = (tmp_path / f"{name}.npz" for name in ("val", "test", "made"))
    calibrator, rule = tmp_path / "made.calibrator.json", tmp_path / "rule.json"
    assert calibrant("calibrate", val, "--apply", test, "--out", made, "--share", 0.4)[0] == 0
    fitted = calibrant("route", "fit", val, "--calibrator", calibrator, "--target-accuracy", 0.7, "--out", rule)
    assert fitted[0] == 0

    def warned(source):
        apply = ("route", "apply", rule, source, "--calibrator", calibrator, "--out", tmp_path / "out.csv")
        return "the rule was fitted on what the calibrator made" in calibrant(*apply)[2]

    # The calibrator was applied to the test cases too, but the rule was not chosen on these.
    assert not warned(test)
    assert warned(val)
