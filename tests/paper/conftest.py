"""Records made from drawn predictions, as the tests of studies make them."""

from tests.studies.conftest import make_record

__all__ = ["make_record"]
