"""Names and defaults in the signatures of commands. This module imports nothing heavy, so that `--help` is fast."""

from typing import Literal

Kind = Literal["logits", "probabilities", "confidence", "score"]
"""What scores are: of all classes (logits, probabilities), or of the predicted class (a probability, any number)."""
DEFAULT_N_BINS = 15
"""Default number of bins of every binned metric, as in most of the literature. The paper of this method uses 10."""
# Limits of one request to `calibrant serve`.
MOST_CASES = 1000
MOST_BYTES = 16 * 2**20
