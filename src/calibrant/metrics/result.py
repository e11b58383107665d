"""What the results of `evaluate`, `compare` and `evaluate_groups` have in common."""

import json
from typing import Any

from calibrant.display import Displayed


class Result(Displayed):
    """A result that is written as JSON, in fractions, and shown as a table, in percent."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        raise NotImplementedError

    def to_json(self) -> str:
        """The result as JSON, in fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def table(self) -> str:
        """A table for people, in percent, with intervals where there are any."""
        from calibrant.metrics.tables import rendered

        return rendered(self._overview())
