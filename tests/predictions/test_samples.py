"""The samples are what the records say, to the precision of float16."""

import json
from pathlib import Path

import pytest

from calibrant import evaluate, samples
from calibrant.errors import InvalidInput

RESULTS = Path(__file__).parent.parent.parent / "results"
RECORDS = {
    "cifar10-resnet32-nll": "cifar10-resnet32-nll-seed0.json",
    "cifar10-resnet32-nll-averaged": "cifar10-resnet32-nll-average=0.25-floor=0.2-kind=cosine-seed1.json",
    "cifar10-resnet50-nll-averaged": "cifar10-resnet50-nll-average=0.25-floor=0.2-kind=cosine-seed0.json",
    "cifar10-resnet32-flsd+h+p-ema": "cifar10-resnet32-flsd+h+p-ema-seed0.json",
}


def test_every_sample_has_a_record():
    assert set(RECORDS) == set(samples.names())


@pytest.mark.parametrize("name", RECORDS)
def test_a_sample_is_the_recorded_run(name):
    record = json.loads((RESULTS / RECORDS[name]).read_text())
    found = evaluate(samples.load(name), n_bins=15)
    expected = record["test"]["15"]
    assert found.n == expected["n"]
    assert found.test_error == pytest.approx(expected["test_error"], abs=3e-4)
    assert found.nll == pytest.approx(expected["nll"], abs=1e-4)
    assert found.ece == pytest.approx(expected["ece"], abs=5e-4)
    validation = evaluate(samples.load(name, "val"), n_bins=10)
    assert validation.nll == pytest.approx(record["validation"]["nll"], abs=1e-4)


def test_the_samples_are_small():
    files = list(Path(samples.__file__).parent.glob("*.npz"))
    assert len(files) == 2 * len(RECORDS)
    assert sum(file.stat().st_size for file in files) < 4 * 2**20


@pytest.mark.parametrize("name", ["cifar10", 3])
def test_an_unknown_sample_is_one_line(name):
    with pytest.raises(InvalidInput, match="name"):
        samples.load(name)


def test_an_unknown_split_is_one_line():
    with pytest.raises(InvalidInput, match="split"):
        samples.load("cifar10-resnet32-nll", "train")
