"""Make the files of `calibrant.predictions.samples` from finished runs: python scripts/make_samples.py NAME=RUN ..."""

import sys
from pathlib import Path

import numpy as np

from calibrant.predictions.samples import SAMPLES
from calibrant.training import Run

FOLDER = Path(__file__).parent.parent / "src" / "calibrant" / "predictions" / "samples"

for argument in sys.argv[1:]:
    name, _, run = argument.partition("=")
    if name not in SAMPLES or not run:
        raise SystemExit(
            f"each argument must be NAME=RUN with a name of calibrant.predictions.samples, got {argument!r}"
        )
    for split in ("val", "test"):
        predictions = Run(run).predictions(split)
        np.savez_compressed(
            FOLDER / f"{name}-{split}.npz",
            logits=predictions.logits.astype(np.float16),
            targets=predictions.targets.astype(np.uint8),
            ids=predictions.ids,
            class_names=np.array(predictions.class_names),
        )
