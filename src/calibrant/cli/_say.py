"""What a command prints: text as it is, or JSON."""

import json
import sys
from typing import Any

from rich.console import Console


def say(text: str) -> None:
    """One line or block on standard output, as it is."""
    Console().print(text, soft_wrap=True, highlight=False, markup=False)


def say_json(content: Any) -> None:
    """JSON on standard output; NaN and infinity are refused because they are not JSON."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
