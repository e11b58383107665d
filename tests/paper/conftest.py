"""Records made from drawn predictions, as the tests of studies make them."""

from tests.study.conftest import make_record

__all__ = ["make_record"]
