import pytest
import torch

from calibrant.errors import CalibrantWarning
from calibrant.training.data import Images
from calibrant.training.data.dataset import Splits
from calibrant.training.data.formats import Source
from calibrant.training.data.load import kept_copy
from calibrant.training.data.spec import Spec


def build():
    images = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8)
    part = Images(images, torch.arange(4), ("a", "b", "c", "d"))
    return Splits(part, part, ("w", "x", "y", "z"), "by hand")


@pytest.fixture
def source(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    return Source("archive", (tmp_path / "file",))


def test_the_copy_equals_what_was_built(source, cache):
    first = kept_copy(Spec("x"), source, build, cache / "calibrant")

    def never():
        raise AssertionError("it was built again")

    again = kept_copy(Spec("x"), source, never, cache / "calibrant")
    assert torch.equal(first.train.images, again.train.images)
    assert torch.equal(first.test.labels, again.test.labels)
    assert (again.train.ids, again.class_names) == (("a", "b", "c", "d"), ("w", "x", "y", "z"))
    assert again.verified == "by hand; decoded copy: SHA-256"


def test_other_options_have_another_copy(source, cache):
    calls = []

    def count():
        calls.append(1)
        return build()

    for size in ("1", "2", "1", "2"):
        kept_copy(Spec("x", options={"size": size}), source, count, cache / "calibrant")
    assert len(calls) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"state": 1}', "{"])
def test_a_damaged_record_is_made_anew(source, cache, text):
    kept_copy(Spec("x"), source, build, cache / "calibrant")
    (record,) = cache.rglob("x-*.json")
    record.write_text(text)
    assert kept_copy(Spec("x"), source, build, cache / "calibrant").verified == "by hand"


def test_a_cache_that_cannot_be_written_is_only_a_warning(source, cache):
    (cache / "calibrant").write_text("a file where the folder should be")
    with pytest.warns(CalibrantWarning, match="the decoded copy of x is not kept"):
        assert kept_copy(Spec("x"), source, build, cache / "calibrant").verified == "by hand"
