import functools
import json
import operator
import random
from pathlib import Path

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.files import read_json, write_json
from calibrant.metrics import evaluate
from calibrant.studies import Record, read_records, record_run, summarise, write_record
from calibrant.studies.records import automation, changes_of
from calibrant.studies.result_tables import paper_tables
from calibrant.training import Run, paper_recipe, train


@pytest.fixture(scope="module")
def run(finished_study):
    return Run(finished_study.folder(finished_study.runs[0]))


@pytest.fixture(scope="module")
def record(run):
    return record_run(run)


def slow_ece(logits, targets, bins):
    """Equal-width ECE in float64, one row at a time."""
    sums = np.zeros((bins, 3))
    for row, target in zip(np.asarray(logits, dtype=np.float64), targets, strict=True):
        probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        top = probabilities.argmax()
        index = min(max(int(np.ceil(probabilities[top] * bins)) - 1, 0), bins - 1)
        sums[index] += 1, probabilities[top], top == target
    return np.abs(sums[:, 1] - sums[:, 2]).sum() / len(targets)


@pytest.mark.parametrize("bins", [10, 15])
@pytest.mark.parametrize("scaled", [False, True])
def test_ece_is_that_of_the_runs_own_predictions(run, record, bins, scaled):
    test = run.predictions("test")
    logits = test.logits.astype(np.float64) / (record.temperature if scaled else 1.0)
    name = ("scaled_" if scaled else "") + ("ece_15_bins" if bins == 15 else "ece")
    assert record.value(name) == pytest.approx(slow_ece(logits, test.targets, bins), abs=1e-9)


def test_the_temperature_comes_from_validation_and_is_optimal_there(run, record):
    validation = run.predictions("val")

    def nll(temperature):
        scaled = validation.logits.astype(np.float64) / temperature
        log = scaled - scaled.max(axis=1, keepdims=True)
        log -= np.log(np.exp(log).sum(axis=1, keepdims=True))
        return -log[np.arange(len(log)), validation.targets].mean()

    best = nll(record.temperature)
    assert best < nll(1.0)
    assert record.validation_nll_scaled == pytest.approx(best, rel=1e-9)
    assert best <= min(nll(record.temperature * 0.99), nll(record.temperature * 1.01))


def test_what_may_be_left_to_the_model_is_measured_too(record, run):
    assert record.automation == automation(run.predictions("val"), run.predictions("test"))


def test_temperature_never_changes_the_error(record):
    assert record.value("scaled_test_error") == record.value("test_error")


def test_a_record_holds_what_it_was_measured_on_and_no_place(record, run):
    text = json.dumps(record.to_dict())
    assert str(run.path) not in text
    assert str(run.path.parents[2]) not in text
    assert {"torch", "python", "device", "commit", "cpu_cores"} <= record.environment.keys()
    assert record.recipe["epochs"] == 2
    assert record.samples_seen == record.samples_full
    assert record.concurrent_runs is None


def test_data_given_by_a_path_keeps_its_file_name_only(run, tmp_path):
    hidden = run.recipe.changed({"data.name": "arrays:/home/somebody/secret/set.npz"})
    made = record_run(Run(run.path, hidden))
    assert made.data == made.recipe["data"]["name"] == "arrays:set.npz"
    assert "somebody" not in json.dumps(made.to_dict())
    path = write_record(made, tmp_path)
    assert path.name.startswith("arrays_set.npz-tiny-nll-")


def test_changes_are_told_from_the_recommended_recipe_and_the_methods_own_settings():
    plain = paper_recipe("cifar10", method__name="flsd+h", seed=3)
    assert changes_of(plain) == {}
    assert changes_of(plain.changed({"engine.precision": "32-true", "model.name": "resnet50"})) == {}
    # 25 is what the method uses on CIFAR-10 with ResNet-32 anyway.
    assert changes_of(plain.changed({"method.options": {"huber_weight": 25}})) == {}
    changed = plain.changed({"method.options": {"huber_weight": 5.0}, "epochs": 80})
    assert changes_of(changed) == {"epochs": 80, "method.options.huber_weight": 5.0}
    cosine = {"schedule.kind": "cosine", "schedule.milestones": (0.1,)}
    assert changes_of(plain.changed(cosine)) == {"schedule.kind": "cosine"}
    assert "schedule.milestones" in changes_of(plain.changed({"schedule.milestones": (0.1,)}))


def test_a_run_at_settings_that_are_no_longer_recommended_is_told_apart(make_record, tmp_path):
    """The recipe named no option: what the method used on that day is what counts."""
    used = {**make_record("mmce").settings, "mmce_weight": 2.0}
    old = make_record("mmce", settings=used, changes={})
    assert changes_of(paper_recipe("cifar10", method__name="mmce"), used) == {"method.options.mmce_weight": 2.0}
    write_record(old, tmp_path)
    write_record(make_record("mmce", seed=1), tmp_path)
    assert [record.variant for record in read_records(tmp_path)] == ["mmce_weight 2", ""]


def test_a_record_of_a_method_that_is_gone_is_read_as_it_was_written(make_record, tmp_path):
    path = write_record(make_record("flsd+h", options={"huber_weight": 0.5}), tmp_path)
    content = read_json(path)
    content["method"] = content["recipe"]["method"]["name"] = "forgotten"
    write_json(path, content)
    (record,) = read_records(tmp_path)
    assert (record.method, record.variant) == ("forgotten", "huber_weight 0.5")


def test_a_number_in_quotes_is_refused(make_record, tmp_path):
    path = write_record(make_record("nll"), tmp_path)
    content = read_json(path)
    content["test"]["10"]["brier"] = "0"
    write_json(path, content)
    with pytest.raises(InvalidInput, match="brier"):
        read_records(tmp_path)


def test_reading_a_record_runs_no_code_that_it_names(make_record, tmp_path, monkeypatch):
    (tmp_path / "bait.py").write_text("open('touched', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    path = write_record(make_record("flsd+h", options={"huber_weight": 0.5}), tmp_path / "results")
    content = read_json(path)
    content["method"] = content["recipe"]["method"]["name"] = "bait:f"
    write_json(path, content)
    (record,) = read_records(tmp_path / "results")
    assert (record.method, record.variant) == ("bait:f", "huber_weight 0.5")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("name", ["os:abort", "sys:exit", "bait:f"])
def test_a_record_whose_method_is_not_that_of_its_recipe_is_refused(make_record, tmp_path, name):
    path = write_record(make_record("nll"), tmp_path)
    content = read_json(path)
    content["recipe"]["method"]["name"] = name
    write_json(path, content)
    with pytest.raises(InvalidInput, match="the same method as in its recipe"):
        read_records(tmp_path)


WRONG = (None, True, -1, 2**60, 1e300, -0.5, "", "x", "a\x1b[31m", [], [1, "x"], {}, {"x": {}}, [[[]]])


def places(content, *way):
    """Every place in nested JSON, as keys and indices."""
    yield way
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from places(value, *way, key)


def test_whatever_a_record_says_is_used_in_tables_or_refused_in_one_line(make_record, tmp_path):
    """Each place of a record with each of many wrong values: what is read can be summarised and shown."""
    told = {
        key: {"share": 0.5, "accuracy": 0.9, "scaled_share": 0.4, "scaled_accuracy": 0.9} for key in ("0.98", "0.99")
    }
    good = make_record("flsd", options={"gamma_low": 4.0}, automation=told)
    text, beside = json.dumps(good.to_dict()), make_record()
    draw = random.Random(0)
    messages = []
    for way in places(json.loads(text)):
        for wrong in draw.sample(WRONG, 2):
            content = json.loads(text)
            if way:
                place = functools.reduce(operator.getitem, way[:-1], content)
                place[way[-1]] = wrong
            else:
                content = wrong
            (tmp_path / "x.json").write_text(json.dumps(content))
            try:
                (record,) = read_records(tmp_path)
            except InvalidInput as error:
                messages.append(str(error))
                continue
            tables = paper_tables(summarise({"nll": [beside], record.label: [record]}, "nll"))
            assert "\x1b" not in "".join(grid.terminal() for grid in tables)
            assert record.file_name
    assert len(messages) > 200
    assert max(len(message) for message in messages) < 500
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("folder", [None, 5])
def test_a_folder_must_be_a_path(make_record, folder):
    with pytest.raises(InvalidInput, match="folder must be a path"):
        read_records(folder)
    with pytest.raises(InvalidInput, match="folder must be a path"):
        write_record(make_record(), folder)


def test_a_run_whose_own_code_is_gone_or_edited_can_be_recorded(run, own_module):
    """Its defaults are not those of the file that is there now: what was given is what was changed."""
    code = "from calibrant.losses import CrossEntropy\ndef f(*, a=1.0, b=2.0):\n    return CrossEntropy()\n"
    own_module("my_loss", code)
    named = run.recipe.changed({"method.name": "my_loss:f", "method.options": {"a": 3.0}}).with_code_digests()
    used = {"a": 3.0, "b": 2.0}
    expected = changes_of(named, used)
    assert {key for key in expected if "options" in key} == {"method.options.a"}
    own_module("my_loss", code.replace("2.0", "5.0").replace("1.0", "3.0"))
    assert changes_of(named, used) == expected
    own_module("my_loss", code).unlink()
    assert changes_of(named, used) == expected


def test_committed_records_are_named_by_todays_recommendations():
    folder = Path(__file__).resolve().parents[2] / "results"
    paths = sorted(folder.glob("*.json"))
    assert [path.name for path in paths] == [record.file_name for record in read_records(folder)]


def test_the_file_name_says_what_it_is(make_record):
    assert make_record("flsd+h", seed=2).file_name == "cifar10-resnet32-flsd+h-seed2.json"
    varied = make_record("flsd+h", options={"huber_weight": 0.5})
    assert varied.file_name == "cifar10-resnet32-flsd+h-huber_weight=0.5-seed0.json"
    assert varied.variant == "huber_weight 0.5"
    many = make_record(changes={f"optimiser.setting_number_{n}": n for n in range(20)})
    assert many.file_name.startswith("cifar10-resnet32-nll-changed-")
    assert len(many.file_name) < 80


def test_another_outcome_of_the_same_settings_is_not_replaced_unasked(make_record, tmp_path):
    first = make_record()
    path = write_record(first, tmp_path)
    assert write_record(first, tmp_path) == path
    other = make_record(predictions_sha256={"val": "x", "test": "y"})
    with pytest.raises(InvalidInput, match="holds another outcome of the same settings"):
        write_record(other, tmp_path)
    assert Record.load(path) == first
    write_record(other, tmp_path, replace=True)
    assert Record.load(path) == other
    assert read_records(tmp_path) == [other]


def test_drafts_of_a_killed_process_go_with_the_next_record_of_the_name(make_record, tmp_path):
    first = make_record("nll")
    name = first.file_name
    for left in (f".{name}.12570.tmp", f".{name}.7.tmp", f".other-{name}.7.tmp"):
        (tmp_path / left).write_text("{")
    write_record(first, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f".other-{name}.7.tmp"])


def test_reading_back_is_exact_and_damage_is_one_line(record, tmp_path):
    path = write_record(record, tmp_path)
    assert Record.load(path) == record
    content = read_json(path)
    del content["temperature"]
    write_json(path, content)
    with pytest.raises(InvalidInput, match="a fault at 'temperature'"):
        Record.load(path)


def test_the_deviation_is_the_intervals_half_width(make_record):
    record = make_record()
    low, high = record.evaluation().intervals["test_error"]
    assert record.deviation("test_error") == pytest.approx((high - low) / 3.92)
    # Errors of 400 independent rows: the binomial standard error, estimated by the bootstrap.
    error = record.value("test_error")
    assert record.deviation("test_error") == pytest.approx((error * (1 - error) / 400) ** 0.5, rel=0.2)


def test_an_unfinished_run_cannot_be_recorded(tmp_path):
    recipe = paper_recipe("digits")
    with pytest.raises(InvalidInput, match="is not finished"):
        record_run(Run.create(tmp_path / "run", recipe))


def test_a_set_of_a_few_images_has_no_spread(make_record):
    record = make_record(seed=1, sharpness=0.7)
    assert record.value("share@0.95") * record.evaluation().n == 13
    assert record.evaluation().intervals["ece@0.95"] is not None
    assert record.deviation("ece@0.95") is None
    assert record.deviation("share@0.95") > 0
    assert make_record(seed=0, sharpness=3.0).deviation("ece@0.95") > 0


def test_a_record_of_the_best_epoch_stands_beside_that_of_the_last(tmp_path):
    recipe = paper_recipe("digits", epochs=2, select="best:error", engine__accelerator="cpu", data__validation=0.7)
    run = train(recipe, tmp_path / "run")
    record = record_run(run)
    assert "select" not in record.changes, "the last epoch is that of any other run"
    assert record.best.epoch == run.summary["best"]["epoch"]
    chosen = record.at_best()
    for split, found in (("test", chosen.evaluation()), ("val", chosen.validation)):
        assert found.ece == evaluate(run.predictions(split, best=True), n_bins=10).ece
    path = write_record(record, tmp_path / "records")
    assert Record.load(path).at_best().evaluation(n_bins=15).ece == chosen.evaluation(n_bins=15).ece
    assert record.at_best().at_best() is None
