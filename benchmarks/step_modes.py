"""Do eager, compiled and graphed steps train alike? Prints the training curves and their differences.

    python benchmarks/step_modes.py [--epochs 3]

On a GPU all three modes run; on a CPU eager and compiled. The same seed, order and augmentation, in float64: a network
with batch normalisation multiplies a rounding difference at every step, so float32 curves part within an epoch whatever
the mode, and only float64 shows that the modes do the same.
"""

import argparse

import torch

from engine import engine_curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--model", default="resnet32" if torch.cuda.is_available() else "tiny")
    options = parser.parse_args()
    modes = ["eager", "compiled", "graphed"] if torch.cuda.is_available() else ["eager", "compiled"]
    curves = {mode: engine_curve(mode, options.model, options.epochs) for mode in modes}
    for epoch in range(options.epochs):
        for mode in modes:
            here, reference = curves[mode][epoch], curves["eager"][epoch]
            print(
                f"epoch {epoch + 1}  {mode:9s} loss {here['loss']:.6f} ({here['loss'] - reference['loss']:+.1e})  "
                f"accuracy {here['accuracy']:.4f} ({here['accuracy'] - reference['accuracy']:+.4f})"
            )


if __name__ == "__main__":
    main()
