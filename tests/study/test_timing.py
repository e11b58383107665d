from calibrant.study.page import group_records
from calibrant.study.timing import timing_table


def plan(make_record, seconds, **fields):
    return make_record("flsd+h+unbiased", seen_share=0.6, samples_seen=600, train_seconds=seconds, **fields)


def table(*records):
    return timing_table(group_records(records), heading="## Time")


def test_time_is_compared_with_the_same_loss_on_all_data(make_record):
    full = [make_record("flsd+h", train_seconds=100.0), make_record("nll", train_seconds=50.0)]
    assert "| flsd+h+unbiased | flsd+h | 60.0 | 64.0 | yes |" in table(*full, plan(make_record, 64.0))
    assert "| flsd+h+unbiased | flsd+h | 60.0 | 66.0 | no |" in table(*full, plan(make_record, 66.0))


def test_what_shared_a_machine_or_ran_on_another_one_is_not_compared(make_record):
    full = make_record("flsd+h")
    for other in (
        plan(make_record, 64.0, concurrent_runs=4),
        plan(make_record, 64.0, concurrent_runs=None),
        plan(make_record, 64.0, environment={"device": "another GPU"}),
        plan(make_record, 64.0, steps_mode="eager"),
    ):
        assert "Not measured yet" in table(full, other)
    assert "Not measured yet" in table(plan(make_record, 64.0))
