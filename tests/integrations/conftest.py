"""Lets the tests here, and the programs that they start, import the task they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
