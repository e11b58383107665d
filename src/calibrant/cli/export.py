"""`calibrant export`: a run as one ONNX file with calibration and routing inside."""

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from calibrant.errors import InvalidInput, invalid
from calibrant.export import export_onnx
from calibrant.posthoc import Calibrator, TemperatureScaling
from calibrant.routing import RoutingRule
from calibrant.training import Run
from calibrant.training.checkpoint import load_checkpoint, newest_checkpoint


def export(
    run: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    rule: Path | None = None,
    calibrator: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write one ONNX file: images in; calibrated probabilities, class and route decision out.

    It takes float32 images (n, C, H, W) on the scale from 0 to 1 and is compared with PyTorch before it is kept.

    Parameters
    ----------
    run:
        A run folder.
    out:
        Where to write. Default: model.onnx in the run folder.
    rule:
        A rule written by "calibrant route fit". Default: rule.json in the run folder, if it is there.
    calibrator:
        A temperature written by "calibrant calibrate", for a rule without one of its own.
    json:
        Print JSON instead of a sentence.
    """
    opened = Run.open(run)
    newest = newest_checkpoint(opened.checkpoints)
    if newest is None:
        raise InvalidInput(f"run {run} has no checkpoint yet. Continue it with: calibrant train --resume {run}")
    about = load_checkpoint(newest).values
    if "mean" not in about:
        raise invalid(str(run), "be trained by a calibrant that keeps the normalisation", "an older checkpoint")
    routing = _rule(run, rule)
    temperature = _temperature(calibrator, routing)
    target = out or run / "model.onnx"
    # Noise around the training images' mean: the comparison needs numbers of the right size, not the data set.
    noise = torch.randn(64, *about["image_shape"], generator=torch.Generator().manual_seed(0))
    centre, spread = (torch.tensor(about[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    check = export_onnx(
        opened.load_model(),
        target,
        example=(centre + spread * noise).clamp(0, 1),
        mean=about["mean"],
        std=about["std"],
        temperature=temperature,
        rule=routing,
    )
    if json:
        content = {"path": str(target), "automates": routing is not None and routing.automates, **asdict(check)}
        sys.stdout.write(json_module.dumps(content, indent=2) + "\n")
        return
    sys.stdout.write(
        f"Wrote {target}. On {check.images} images it equals PyTorch to {check.largest_difference:.1g}.\n"
        + ("" if routing is not None else "It has no routing rule, so it automates nothing: see calibrant route fit.\n")
    )


def _rule(run: Path, path: Path | None) -> RoutingRule | None:
    if path is not None:
        return RoutingRule.load(path)
    return RoutingRule.load(run / "rule.json") if (run / "rule.json").is_file() else None


def _temperature(path: Path | None, rule: RoutingRule | None) -> float:
    if path is None:
        return 1.0
    if rule is not None and rule.temperature is not None:
        raise invalid("--calibrator", "be left out, the rule has its own temperature", str(path))
    calibrator = Calibrator.load(path)
    if not isinstance(calibrator, TemperatureScaling):
        raise invalid("--calibrator", "be a temperature", calibrator.method, "Other maps are not exported.")
    return calibrator.temperature_
