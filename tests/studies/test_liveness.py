import pytest

from calibrant.studies.liveness import is_dead, living_worker


def test_a_living_worker_is_not_dead_and_leaves_nothing_behind(tmp_path):
    with living_worker(tmp_path) as name:
        assert not is_dead(tmp_path, name)
        with living_worker(tmp_path) as other:
            assert other != name
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_nobody_holds_is_a_dead_worker_and_an_unknown_one_may_live_elsewhere(tmp_path):
    (tmp_path / "gone.lock").touch()
    assert is_dead(tmp_path, "gone")
    assert not is_dead(tmp_path, "elsewhere")


def test_an_error_inside_ends_the_worker_cleanly(tmp_path):
    with pytest.raises(KeyError), living_worker(tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
