from calibrant.errors import InvalidInput, did_you_mean, invalid


def test_the_error_is_a_value_error_with_rule_value_and_way_out():
    error = invalid("gamma", "be at least 0", -1, "Use 3.")
    assert isinstance(error, InvalidInput)
    assert isinstance(error, ValueError)
    assert str(error) == "gamma must be at least 0, got -1. Use 3."


def test_did_you_mean_lists_everything_when_nothing_is_close():
    assert did_you_mean("zzzz", ["nll", "flsd"]) == "Known: nll, flsd."
