import logging

import pytest

from calibrant.logs import at_level


def test_levels_come_back_also_after_an_error():
    log = logging.getLogger("calibrant.test.logs")
    log.setLevel(logging.INFO)
    with pytest.raises(RuntimeError), at_level(logging.ERROR, log.name):
        assert log.level == logging.ERROR
        raise RuntimeError
    assert log.level == logging.INFO
