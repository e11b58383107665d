"""Small real files of every kind that this package reads, made by its own writers."""

import gzip
import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from PIL import Image

from calibrant import Predictions
from calibrant.cli import run
from calibrant.training.data.formats import idx_header

CLASSES = ("cat", "dog", "owl")


def build(folder: Path) -> None:
    """Write the corpus into an empty folder."""
    rng = np.random.default_rng(0)
    for name, rows in (("val", 400), ("fresh", 400), ("test", 60)):
        logits = 3 * rng.normal(size=(rows, 3))
        targets = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        ids = [f"{name}-{row}" for row in range(rows)]
        made = Predictions.from_logits(1.5 * logits, targets, ids=ids, class_names=CLASSES)
        for suffix in ("npz", "csv", "parquet"):
            made.save(folder / f"{name}.{suffix}")
    _routing(folder)
    _later(folder)
    _images(folder, rng)
    _public_sets(folder, rng)
    _run(folder)


def _calibrant(*arguments: object) -> None:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = run([str(argument) for argument in arguments])
    assert code == 0, arguments


def _routing(folder: Path) -> None:
    val, fresh = folder / "val.npz", folder / "fresh.npz"
    _calibrant("calibrate", val, "--apply", folder / "test.npz", "--out", folder / "scaled.npz", "--share", 0.4)
    policy = folder / "policy.json"
    fit = ("--target-accuracy", 0.8, "--policy", folder / "scaled.policy.json")
    _calibrant("route", "fit", val, *fit, "--out", policy)
    _calibrant("route", "shortlist", policy, fresh)


def _later(folder: Path) -> None:
    """What comes after a policy: decisions, their log, labels, predictions in parts, and bodies for a service."""
    from calibrant.decisions import Policy
    from calibrant.deployment import Decision, DecisionLog

    fresh = folder / "fresh.npz"
    for suffix in ("csv", "parquet"):
        _calibrant("route", "apply", folder / "policy.json", fresh, "--out", folder / f"decisions.{suffix}")
    cases = Predictions.load(fresh)
    labels = [f"fresh-{row},{CLASSES[k]}" for row, k in enumerate(cases.targets[:300].tolist())]
    (folder / "labels.csv").write_text("\n".join(["id,target", *labels]) + "\n")
    (folder / "parts").mkdir()
    for number in range(2):
        cases.subset(np.arange(200) + 200 * number).save(folder / "parts" / f"{number}.parquet")
    policy = Policy.load(folder / "policy.json")
    with DecisionLog(folder / "decisions.db", model="0" * 64, n_classes=3, class_names=CLASSES) as log:
        digest = log.add_policy(policy)
        confidence = np.linspace(0.4, 1.0, 60).tolist()
        made = [
            Decision(f"case-{n}", n % 3, c, c >= policy.routing.thresholds[n % 3], (0, 1), extras={"site": n % 2})
            for n, c in enumerate(confidence)
        ]
        log.append(made, policy=digest)
        log.label_all({f"case-{n}": CLASSES[n % 3] for n in range(40)})
    body = {"inputs": [[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], "ids": ["a", "b"], "extras": [{"site": "north"}, {"age": 4}]}
    (folder / "body.json").write_text(json.dumps(body))
    (folder / "told.json").write_text(json.dumps({"labels": {"case-50": "cat", "case-51": 2}}))


def _images(folder: Path, rng: np.random.Generator) -> None:
    arrays = {}
    for split, rows in (("train", 24), ("test", 12)):
        labels = np.arange(rows) % 3
        arrays[f"x_{split}"] = (rng.integers(0, 80, (rows, 8, 8, 1)) + 80 * labels[:, None, None, None]).astype("uint8")
        arrays[f"y_{split}"] = labels
    np.savez(folder / "images.npz", class_names=np.array(CLASSES), **arrays)
    for name in CLASSES[:2]:
        for index, kind in enumerate(("png", "jpg", "png")):
            path = folder / "pictures" / name / f"{index}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def _public_sets(folder: Path, rng: np.random.Generator) -> None:
    """Files in the formats of the public sets, each with few images."""
    from scipy.io import savemat

    place = folder / "sets"
    place.mkdir()
    for name, shape in IDX_SHAPES.items():
        values = (np.arange(np.prod(shape)) % 3).astype(np.uint8)
        content = idx_header(shape) + values.tobytes()
        (place / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    records = rng.integers(0, 10, (4, 3073), dtype=np.uint8)
    records[:, 0] = range(4)
    (place / "batch.bin").write_bytes(records.tobytes())
    for name in ("train_32x32.mat", "test_32x32.mat"):
        pixels = rng.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
        savemat(place / name, {"X": pixels, "y": np.array([[1], [2], [3], [10]], np.uint8)}, do_compression=True)
    tiny = place / "tiny-imagenet-200"
    for path in (tiny / "train/n01/images", tiny / "train/n02/images", tiny / "val/images"):
        path.mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path / "a.JPEG")
    (tiny / "wnids.txt").write_text("n01\nn02\n")
    (tiny / "words.txt").write_text("n01\tgoldfish, carp\nn02\tcrane\n")
    (tiny / "val" / "val_annotations.txt").write_text("a.JPEG\tn01\t0\t0\t62\t62\n")


IDX_SHAPES = {"train-images": (6, 4, 4), "train-labels": (6,), "test-images": (3, 4, 4), "test-labels": (3,)}


def _run(folder: Path) -> None:
    """A finished run, its record, and a study."""
    from calibrant.studies import record_run, write_record
    from calibrant.training import Run

    settings = (
        "--data",
        f"arrays:{folder / 'images.npz'}",
        "--model",
        "tiny",
        "--epochs",
        2,
        "--set",
        "optimiser.batch_size=8",
    )
    method = ("--method", "nll+unbiased", "--set", "data.validation=0.25")
    _calibrant("train", *settings, *method, "--out", folder / "run")
    write_record(record_run(Run(folder / "run")), folder / "records")
    lines = ["methods = ['nll', 'brier']", "seeds = [0, 1]", "data = ['digits']", "[recipe]", "epochs = 1"]
    (folder / "study.toml").write_text("\n".join(lines) + "\n")
    (folder / "recipe.toml").write_text((folder / "run" / "recipe.toml").read_text())
    # As a run is left by a process that ended after its last epoch.
    paused = shutil.copytree(folder / "run", folder / "paused")
    (paused / "summary.json").unlink()
    shutil.rmtree(paused / "predictions")
