"""What mirrored and shifted views at test time gain, beside a network that costs as much.

Run: python benchmarks/views.py fashion-mnist.npz [--epochs 3] [--out results/benchmarks/views.txt]

Two small networks are trained on the CPU with mirrored pictures: one, and one that is 1.42 times as wide and so costs
twice as much. Shares are means over 30 splits of the test cases: 5,000 fit a policy, the others show what it decides.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from calibrant import Predictions
from calibrant.decisions import fit_policy
from calibrant.metrics import aurc
from calibrant.training.models import AveragedViews
from ranking_sets import images_of


def network(width: int, channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    inside = channels
    for outside in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36 * width, classes))


def trained(width: int, images: np.ndarray, labels: np.ndarray, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    model = network(width, images.shape[1], int(labels.max()) + 1)
    optimiser = torch.optim.Adam(model.parameters())
    steps = epochs * (len(images) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=steps)
    for step in range(steps):
        rng = np.random.default_rng([11, step])
        rows = rng.integers(len(images), size=128)
        inputs = torch.from_numpy(images[rows]).float() / 255 - 0.5
        mirrored = torch.from_numpy(rng.random(128) < 0.5)
        inputs[mirrored] = inputs[mirrored].flip(-1)
        loss = nn.functional.cross_entropy(model(inputs), torch.from_numpy(labels[rows]).long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def judged(name: str, model: nn.Module, images: np.ndarray, labels: np.ndarray) -> str:
    start = time.process_time()
    with torch.no_grad():
        parts = [model(torch.from_numpy(part).float() / 255 - 0.5) for part in np.array_split(images, 20)]
    seconds = time.process_time() - start
    predictions = Predictions.from_logits(torch.cat(parts).numpy(), labels.astype(np.int64))
    shares: dict[float, list[float]] = {0.98: [], 0.99: []}
    for split in range(30):
        rows = np.random.default_rng(split).permutation(len(labels))
        cases, new = predictions.subset(np.sort(rows[:5000])), predictions.subset(np.sort(rows[5000:]))
        for target, found in shares.items():
            found.append(float(fit_policy(cases, target, score="auto", seed=split).decide(new).automate.mean()))
    error, area = 100 * (1 - predictions.correct.mean()), 1e4 * float(aurc(predictions))
    alone = ", ".join(f"{100 * np.mean(found):.1f} % at {100 * target:g} %" for target, found in shares.items())
    return f"{name}: error {error:.2f} %, AURC {area:.1f}, decided alone {alone}; {seconds:.1f} s of CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arrays = images_of(arguments.data)
    test = arrays["x_test"], arrays["y_test"]
    lines = [f"$ python benchmarks/views.py {arguments.data.name} --epochs {arguments.epochs}"]
    small = trained(16, arrays["x_train"], arrays["y_train"], arguments.epochs)
    lines.append(judged("one view", small, *test))
    lines.append(judged("mirror (2 views)", AveragedViews(small, "mirror"), *test))
    lines.append(judged("mirror+shift (6 views)", AveragedViews(small, "mirror+shift"), *test))
    wide = trained(23, arrays["x_train"], arrays["y_train"], arguments.epochs)
    lines.append(judged("a network for twice the price, one view", wide, *test))
    text = "\n".join(lines)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
