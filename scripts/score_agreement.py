"""Whether Python, the ONNX file, the HTTP service, its log, `route apply` and the monitor decide alike for each score.

Run: python scripts/score_agreement.py [--cases 10000] [--out results/benchmarks/score-agreement.txt]

The cases are the official test images of CIFAR-10 as a ResNet-32 scored them (a shipped sample), repeated with other
temperatures if more are asked for. The exported network is the identity, so that all of them decide on the same scores.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from calibrant import Predictions, samples
from calibrant.decisions import Policy, choose_shortlist, fit_policy, route_file
from calibrant.deployment import Decider, DecisionLog, export_onnx
from calibrant.deployment.monitor_stream import Stream

SCORES = ("probability", "margin", "entropy", "pnorm2", "pnorm4", "auto")
BATCH = 500


def cases_of(name: str, count: int) -> Predictions:
    test = samples.load(name, "test")
    parts, targets, factor = [], [], 1.0
    while sum(map(len, parts)) < count:
        parts.append((factor * test.scores).astype(np.float32))
        targets.append(test.targets)
        factor *= 3.0  # the more they are repeated, the more of them saturate
    return Predictions.from_logits(np.concatenate(parts)[:count], np.concatenate(targets)[:count])


def policy_of(name: str, score: str) -> Policy:
    held_out = samples.load(name, "val")
    policy = fit_policy(held_out, 0.98, score=score)
    shortlist = choose_shortlist(policy.calibrate(held_out.subset(np.arange(500))), 0.9, rule=policy.routing)
    return Policy(policy.n_classes, policy.calibrator, policy.rule, shortlist)


def by_service(path: Path, log: Path, scores: Any) -> list[bool]:
    """Decisions of a real server process, in batches over HTTP."""
    command = [sys.executable, "-m", "calibrant", "serve", str(path), "--port", "0", "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1].rstrip("/")
            automate: list[bool] = []
            for start in range(0, len(scores), BATCH):
                part = scores[start : start + BATCH]
                ids = [str(start + row) for row in range(len(part))]
                body = json.dumps({"inputs": part.tolist(), "ids": ids}).encode()
                request = urllib.request.Request(
                    f"{address}/decisions", body, {"Content-Type": "application/json"}, method="POST"
                )
                with urllib.request.urlopen(request) as answer:
                    decisions = json.load(answer)["decisions"]
                automate += [decision["decision"] == "auto" for decision in decisions]
            return automate
        finally:
            process.terminate()


def compared(score: str, cases: Predictions, folder: Path) -> str:
    policy = policy_of("cifar10-resnet32-nll", score)
    scores = np.array(cases.scores, dtype=np.float32)
    expected = policy.decide(scores, "logits").automate
    limits = {"inputs": (float(scores.min()), float(scores.max()))}
    path, log = folder / "model.onnx", folder / "log.db"
    export_onnx(torch.nn.Identity(), path, policy=policy, example=torch.from_numpy(scores), ranges=limits)
    found: dict[str, Any] = {}
    session = onnxruntime.InferenceSession(str(path))
    found["ONNX"] = session.run(["automate"], {"inputs": scores})[0]
    found["ONNX, one by one"] = [session.run(["automate"], {"inputs": row[None]})[0][0] for row in scores]
    found["Decider"] = [decision.automate for decision in Decider.load(path).decide(scores)]
    found["service"] = by_service(path, log, scores)
    with DecisionLog(log) as opened:
        stream = Stream.of_log(opened)
    in_order = np.argsort([int(each) for each in stream.ids])
    found["log and monitor"] = stream.automate[in_order]
    Predictions.from_logits(scores, cases.targets).save(folder / "cases.npz")
    route_file(policy, folder / "cases.npz", folder / "out.csv")
    with (folder / "out.csv").open() as file:
        found["route apply"] = [row["decision"] == "auto" for row in csv.DictReader(file)]
    found["monitor of predictions"] = Stream.of_predictions(policy, cases).automate
    differ = {name: int((np.asarray(values) != expected).sum()) for name, values in found.items()}
    words = ", ".join(f"{name} {count}" for name, count in differ.items())
    chosen = score
    if score == "auto":
        chosen = f"auto ({policy.routing.score})"
    return f"{chosen}: {len(scores):,} cases, {int(expected.sum()):,} automated; decisions that differ: {words}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = cases_of("cifar10-resnet32-nll", arguments.cases)
    lines = [f"$ python scripts/score_agreement.py --cases {arguments.cases}"]
    for score in SCORES:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(compared(score, cases, Path(folder)))
        print(lines[-1], flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
