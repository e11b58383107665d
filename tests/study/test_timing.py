from calibrant.study.page import group_records
from calibrant.study.timing import timing_table


def plan(make_record, seconds, **fields):
    return make_record("flsd+h+unbiased", seen_share=0.6, samples_seen=600, train_seconds=seconds, **fields)


def shorter(make_record):
    record = plan(make_record, 32.0)
    return record.model_copy(update={"recipe": {**record.recipe, "epochs": 80}})


def table(*records):
    return timing_table(group_records(records), heading="## Time")


def test_time_is_compared_with_the_same_loss_on_all_data(make_record):
    full = [make_record("flsd+h", train_seconds=100.0), make_record("nll", train_seconds=50.0)]
    assert "| flsd+h+unbiased | flsd+h | 160 | 60.0 | 64.0 | yes | - | - | - |" in table(*full, plan(make_record, 64.0))
    assert "| flsd+h+unbiased | flsd+h | 160 | 60.0 | 66.0 | no | - | - | - |" in table(*full, plan(make_record, 66.0))


def test_without_a_run_of_the_same_loss_nll_stands_in(make_record):
    full = make_record("nll", train_seconds=100.0)
    assert "| flsd+h+unbiased | nll | 160 | 60.0 | 64.0 | yes |" in table(full, plan(make_record, 64.0))


def test_the_first_epoch_is_shown_apart(make_record):
    full = make_record("nll", train_seconds=100.0, later_seconds=50.0, later_samples=900)
    ours = plan(make_record, 80.0, later_seconds=30.0, later_samples=500)
    assert "| 60.0 | 80.0 | no | 55.6 | 60.0 | yes |" in table(full, ours)


def test_what_shared_a_machine_or_ran_on_another_one_is_not_compared(make_record):
    full = make_record("flsd+h")
    for other in (
        plan(make_record, 64.0, concurrent_runs=4),
        plan(make_record, 64.0, concurrent_runs=None),
        plan(make_record, 64.0, environment={"device": "another GPU"}),
        plan(make_record, 64.0, steps_mode="eager"),
        shorter(make_record),
    ):
        assert "Not measured yet" in table(full, other)
    assert "Not measured yet" in table(plan(make_record, 64.0))
