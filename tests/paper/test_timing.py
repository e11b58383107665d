import pytest

from paper.runs import group_records
from paper.timing import timing_table


def plan(make_record, seconds, **fields):
    return make_record("flsd+h+unbiased", seen_share=0.6, samples_seen=600, train_seconds=seconds, **fields)


def shorter(make_record):
    record = plan(make_record, 32.0)
    return record.model_copy(update={"recipe": {**record.recipe, "epochs": 80}})


def other_engine(make_record, **options):
    record = plan(make_record, 64.0)
    engine = {**record.recipe["engine"], **options}
    return record.model_copy(update={"recipe": {**record.recipe, "engine": engine}})


def table(*records):
    return timing_table(group_records(records), heading="## Time")


def test_time_is_compared_with_the_same_loss_on_all_data(make_record):
    full = [make_record("flsd+h", train_seconds=100.0), make_record("nll", train_seconds=50.0)]
    assert "| flsd+h+unbiased | flsd+h | 160 | 60.0 | 64.0 | yes | - | - | - |" in table(*full, plan(make_record, 64.0))
    assert "| flsd+h+unbiased | flsd+h | 160 | 60.0 | 66.0 | no | - | - | - |" in table(*full, plan(make_record, 66.0))


def test_five_points_above_the_updates_is_the_limit(make_record):
    full = make_record("flsd+h", train_seconds=1000.0)
    assert "| 60.0 | 65.0 | yes |" in table(full, plan(make_record, 649.9))
    assert "| 60.0 | 65.0 | no |" in table(full, plan(make_record, 650.1))


def test_the_longest_name_that_the_plan_continues_is_the_same_loss(make_record):
    full = [make_record("flsd", train_seconds=50.0), make_record("flsd+h", train_seconds=100.0)]
    assert "| flsd+h+unbiased | flsd+h | 160 | 60.0 | 64.0 |" in table(*full, plan(make_record, 64.0))


def test_seeds_are_averaged_and_only_full_runs_alone_on_the_machine_are_the_reference(make_record):
    full = [make_record("flsd+h", train_seconds=90.0), make_record("flsd+h", seed=1, train_seconds=110.0)]
    shared = make_record("flsd+h", seed=2, train_seconds=500.0, concurrent_runs=6)
    pruned = make_record("flsd+h", seed=3, train_seconds=500.0, seen_share=0.6, samples_seen=600)
    ours = [
        plan(make_record, 60.0),
        plan(make_record, 66.0, seed=1),
        plan(make_record, 900.0, seed=2, steps_mode="eager"),
    ]
    found = table(*full, shared, pruned, *ours)
    assert "| flsd+h+unbiased | flsd+h | 160 | 60.0 | 63.0 | yes |" in found
    assert found.count("| flsd+h+unbiased |") == 1


def test_without_a_run_of_the_same_loss_nll_stands_in(make_record):
    full = make_record("nll", train_seconds=100.0)
    assert "| flsd+h+unbiased | nll | 160 | 60.0 | 64.0 | yes |" in table(full, plan(make_record, 64.0))
    other_loss = make_record("fl+mdca", train_seconds=500.0)
    assert "| flsd+h+unbiased | nll | 160 | 60.0 | 64.0 | yes |" in table(full, other_loss, plan(make_record, 64.0))


def test_the_first_epoch_is_shown_apart(make_record):
    full = make_record("nll", train_seconds=100.0, later_seconds=50.0, later_samples=900)
    ours = plan(make_record, 80.0, later_seconds=30.0, later_samples=500)
    assert "| 60.0 | 80.0 | no | 55.6 | 60.0 | yes |" in table(full, ours)


@pytest.mark.parametrize(
    "unknown",
    [{"later_seconds": None}, {"later_samples": None}, {"later_seconds": 0.0}, {"later_samples": 0}],
)
def test_later_epochs_are_compared_only_where_both_know_them(make_record, unknown):
    known = {"later_seconds": 50.0, "later_samples": 900}
    for of_full, of_plan in ((known, known | unknown), (known | unknown, known)):
        found = table(make_record("nll", **of_full), plan(make_record, 64.0, **of_plan))
        assert "| 60.0 | 64.0 | yes | - | - | - |" in found


def test_what_shared_a_machine_or_ran_on_another_one_is_not_compared(make_record):
    full = make_record("flsd+h")
    for other in (
        plan(make_record, 64.0, concurrent_runs=4),
        plan(make_record, 64.0, concurrent_runs=None),
        plan(make_record, 64.0, environment={"device": "another GPU"}),
        plan(make_record, 64.0, steps_mode="eager"),
        plan(make_record, 64.0, samples_full=2000),
        other_engine(make_record, precision="32-true"),
        plan(make_record, 64.0, steps_mode="graphed, tuned"),
        shorter(make_record),
    ):
        assert "Not measured yet" in table(full, other)
    assert "Not measured yet" in table(plan(make_record, 64.0))


def test_a_run_on_all_data_is_no_plan(make_record):
    assert "Not measured yet" in table(make_record("flsd"), make_record("flsd+h"))
