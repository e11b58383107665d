"""What mirrored and shifted views at test time gain, beside networks that cost as much.

Run: python benchmarks/views.py [RUN] [--data-dir DIR] [--networks RUN ...] [--out results/benchmarks/views.txt]
     python benchmarks/views.py fashion-mnist.npz [--epochs 3] [--out FILE]

With a run folder: its network predicts with two views (mirror) and six (mirror+shift); one view is what the run has.
With `--networks`, beside it or alone, the logits of several runs on the same data are averaged: two of them cost as
much as two views when predicting, and one training more.

With an npz of pictures two small networks are trained on the CPU with mirrored pictures: one, and one that is 1.42
times as wide and so costs twice as much.

Shares decided alone: each of 100 splits fits a policy (score "auto") on 5,000 cases, and the others show what it
decides. The cases are validation and test cases of a run, or the test cases of the npz. In brackets the difference from
the first line on the same splits with its 95 % interval, which is about the splits and not about other networks.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from calibrant import Predictions
from calibrant.decisions import fit_policy
from calibrant.metrics import aurc
from calibrant.training import Run, predict_again
from calibrant.training.models import AveragedViews
from ranking_scores import TARGETS, joined, shown, split_of
from ranking_sets import images_of

SPLITS = 100


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


def small_networks(path: Path, epochs: int) -> dict[str, Predictions]:
    arrays = images_of(path)
    images, labels = arrays["x_test"], arrays["y_test"].astype(np.int64)
    small = trained(16, arrays["x_train"], arrays["y_train"], epochs)
    wide = trained(23, arrays["x_train"], arrays["y_train"], epochs)
    models = {
        "one view": small,
        "mirror (2 views)": AveragedViews(small, "mirror"),
        "mirror+shift (6 views)": AveragedViews(small, "mirror+shift"),
        "a network for twice the price, one view": wide,
    }
    found = {}
    for name, model in models.items():
        start = time.process_time()
        with torch.no_grad():
            parts = [model(torch.from_numpy(part).float() / 255 - 0.5) for part in np.array_split(images, 20)]
        print(f"{name}: {time.process_time() - start:.1f} s of CPU", flush=True)
        found[name] = Predictions.from_logits(torch.cat(parts).numpy(), labels)
    return found


def cases_of(run: Run) -> Predictions:
    return joined([run.predictions("val"), run.predictions("test")])


def of_run(path: Path, data_dir: Path | None) -> dict[str, Predictions]:
    found = {"one view": cases_of(Run(path))}
    with tempfile.TemporaryDirectory() as folder:
        for views, name in (("mirror", "mirror (2 views)"), ("mirror+shift", "mirror+shift (6 views)")):
            start = time.process_time()
            again = predict_again(path, Path(folder) / views, views=views, data_dir=data_dir)
            print(f"{name}: {time.process_time() - start:.1f} s of CPU", flush=True)
            found[name] = cases_of(again)
    return found


def of_networks(paths: list[Path]) -> dict[str, Predictions]:
    networks = [cases_of(Run(path)) for path in paths]
    found = {}
    for count in range(1, len(networks) + 1):
        logits = np.mean([cases.logits for cases in networks[:count]], axis=0)
        found[f"networks: {count}"] = Predictions.from_logits(logits, networks[0].targets)
    return found


def shares_of(cases: Predictions) -> dict[float, list[float]]:
    shares: dict[float, list[float]] = {target: [] for target in TARGETS}
    for split in range(SPLITS):
        some, new = split_of(cases, 5000, split)
        for target in TARGETS:
            policy = fit_policy(some, target, score="auto", seed=split)
            shares[target].append(float(policy.decide(new).automate.mean()))
    return shares


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--networks", type=Path, nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Predictions] = {}
    command = "$ python benchmarks/views.py"
    if arguments.source is not None:
        command += f" {arguments.source.name}"
        if arguments.source.is_dir():
            found = of_run(arguments.source, arguments.data_dir)
        else:
            found = small_networks(arguments.source, arguments.epochs)
    if arguments.networks:
        command += f" --networks {' '.join(path.name for path in arguments.networks)}"
        found |= of_networks(arguments.networks)
    lines = [command]
    plain = shares_of(next(iter(found.values())))
    for name, cases in found.items():
        shares = shares_of(cases)
        alone = ", ".join(f"{shown(shares[target], plain[target], 100)} % at {100 * target:g} %" for target in TARGETS)
        error, area = 100 * (1 - cases.correct.mean()), 1e4 * float(aurc(cases))
        lines.append(f"{name}: error {error:.2f} %, AURC {area:.1f}, decided alone {alone}")
        print(lines[-1], flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
