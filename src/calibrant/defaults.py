"""Names and defaults that the signatures of commands show. Nothing here imports torch: `--help` answers at once."""

from typing import Literal

Kind = Literal["logits", "probabilities"]
DEFAULT_N_BINS = 15
"""Bins of every binned metric unless told otherwise, as in most of the literature; the paper of this method uses 10."""
# Of one request to `calibrant serve`.
MOST_CASES = 1000
MOST_BYTES = 16 * 2**20
