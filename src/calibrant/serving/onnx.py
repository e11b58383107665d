"""One ONNX file that decides: normalisation, network, calibrator and routing rule inside, checked once written."""

import json
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import CheckFailed, InvalidInput, invalid
from calibrant.files import atomic_write, refuse_overwriting
from calibrant.logs import at_level
from calibrant.posthoc import Calibrator, TemperatureScaling
from calibrant.routing import RoutingRule
from calibrant.serving.module import Deployed
from calibrant.serving.parts import CalibratorLike, Parts, RuleLike, parts_for
from calibrant.training import Run

TOLERANCE = 1e-5
INPUT = "images"
OUTPUTS = ("probabilities", "predicted", "automate")


@dataclass(frozen=True)
class ExportCheck:
    """How the ONNX file compares with PyTorch on the same images.

    Attributes:
        images: How many were compared.
        largest_difference: Of any probability.
        decisions_differ: Rows whose decision differs; possible only within `TOLERANCE` of a threshold.
    """

    images: int
    largest_difference: float
    decisions_differ: int


@dataclass(frozen=True)
class Exported(ExportCheck):
    """What was written, and how it compares with PyTorch.

    Attributes:
        path: The file.
        parts: The calibrator and the rule that are inside.
    """

    path: Path
    parts: Parts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        parts = self.parts
        return {
            "path": str(self.path),
            "automates": parts.automates,
            "rule": None if parts.rule_path is None else str(parts.rule_path),
            "calibrator": None if parts.calibrator_path is None else str(parts.calibrator_path),
            "calibrated": parts.calibrated,
            "images": self.images,
            "largest_difference": self.largest_difference,
            "decisions_differ": self.decisions_differ,
        }

    def describe(self) -> str:
        """What the file is, for a person."""
        equal = f"On {self.images} images it equals PyTorch to {self.largest_difference:.1g}."
        return f"Wrote {self.path}. {equal}\n{self.parts.describe()}"


def export_onnx(
    model: nn.Module | Run,
    path: str | Path | None = None,
    *,
    calibrator: CalibratorLike = None,
    rule: RuleLike = None,
    uncalibrated: bool = False,
    trust_code: bool = False,
    example: Tensor | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    temperature: float = 1.0,
    class_names: Sequence[str] | None = None,
) -> Exported:
    """Write an ONNX file and compare it with PyTorch before it replaces anything.

    Args:
        model: A finished run; or a classifier that gives logits, which is put in evaluation mode.
        path: Where to write, `.onnx`; by default `model.onnx` in the run.
        calibrator: A fitted smooth calibrator (temperature, vector, matrix, Dirichlet, beta) or its file; it comes
            first, then the rule's own temperature. By default the run's, where it has one and the rule has no
            temperature of its own. A rule that was chosen on other predictions than it made is refused.
        rule: Routing rule or its file; by default the run's. Without one nothing is automated.
        uncalibrated: Leave the run's calibrator out.
        trust_code: Whether to import a run's network `module:name` that you have not used on this machine before.
        example: Without a run: float images on the scale from 0 to 1, shape (n, C, H, W), n >= 2; the more like real
            ones the better.
        mean: Without a run: normalisation per channel; None for none.
        std: Without a run: normalisation per channel; None for none.
        temperature: Without a run: logits are divided by it, after the calibrator.
        class_names: Kept in the file's metadata; a rule's names are the default.

    Raises:
        CheckFailed: The file computes something else than PyTorch.
    """
    if isinstance(model, Run):
        if example is not None or mean is not None or std is not None or temperature != 1.0:
            raise invalid("example, mean, std and temperature", "be left out for a run, which knows them", "them")
        given = model, path, calibrator, rule, class_names
        return _export_run(*given, uncalibrated=uncalibrated, trust_code=trust_code)
    if path is None or example is None:
        raise invalid("path and example", "be given where there is no run", "none")
    if not 0 < temperature < math.inf:
        raise invalid("temperature", "be positive and finite", temperature)
    mapping = Calibrator.load(calibrator) if isinstance(calibrator, str | Path) else calibrator
    parts = Parts(mapping, RoutingRule.load(rule) if isinstance(rule, str | Path) else rule)
    return _write(_deployed(model, example, mean, std, parts, temperature), Path(path), parts, example, class_names)


def _export_run(
    run: Run,
    path: str | Path | None,
    calibrator: CalibratorLike,
    rule: RuleLike,
    class_names: Sequence[str] | None,
    *,
    uncalibrated: bool,
    trust_code: bool,
) -> Exported:
    # Weights of a run that goes on are not what its figures will be about, and averaged weights come at the very end.
    run.refuse_unfinished()
    checkpoint = run.checkpoint()
    about = checkpoint.values
    if "mean" not in about:
        raise invalid(str(run.path), "be trained by a calibrant that keeps the normalisation", "an older checkpoint")
    target = run.onnx_path if path is None else Path(path)
    given = [part for part in (calibrator, rule) if isinstance(part, str | Path)]
    refuse_overwriting([target], [*given, run.calibrator_path, run.rule_path, *run.checkpoints.glob("*")])
    parts = parts_for(run, n_classes=about["classes"], calibrator=calibrator, rule=rule, uncalibrated=uncalibrated)
    # Noise around the training images' mean: the comparison needs numbers of the right size, not the data set.
    noise = torch.randn(64, *about["image_shape"], generator=torch.Generator().manual_seed(0))
    centre, spread = (torch.tensor(about[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    example = (centre + spread * noise).clamp(0, 1)
    deployed = _deployed(run.load_model(checkpoint, trust_code=trust_code), example, about["mean"], about["std"], parts)
    return _write(deployed, target, parts, example, class_names)


def _write(
    deployed: Deployed, path: Path, parts: Parts, example: Tensor, class_names: Sequence[str] | None
) -> Exported:
    onnx = _module("onnx")
    if path.suffix.lower() != ".onnx":
        raise invalid("path", "end in .onnx", str(path))
    with atomic_write(path) as temporary:
        proto = _trace(deployed, example).model_proto
        _describe(proto, deployed, parts, class_names)
        onnx.checker.check_model(proto, full_check=True)
        temporary.write_bytes(proto.SerializeToString())
        check = compare_onnx(temporary, deployed, example, name=str(path))
    return Exported(check.images, check.largest_difference, check.decisions_differ, path, parts)


def compare_onnx(path: str | Path, deployed: Deployed, images: Tensor, *, name: str = "") -> ExportCheck:
    """Run a file with onnxruntime and compare it with PyTorch: all images at once, and the first alone."""
    runtime = _module("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    largest, differ = 0.0, 0
    for batch in (images, images[:1]):
        with torch.no_grad():
            probabilities, predicted, automate = deployed(batch)
        found = session.run(list(OUTPUTS), {INPUT: batch.numpy()})
        gap = float((torch.from_numpy(found[0]) - probabilities).abs().max())
        largest = gap if math.isnan(gap) else max(largest, gap)
        top = probabilities.gather(1, predicted[:, None])[:, 0]
        other = torch.from_numpy(found[2]) != automate
        # A decision may only differ where the confidence lies at the threshold itself.
        near = (top - deployed.thresholds[predicted]).abs() <= TOLERANCE
        differ = max(differ, int(other.sum()))
        classes_differ = torch.from_numpy(found[1]) != predicted
        tied = probabilities.topk(2, dim=1).values.diff(dim=1)[:, 0].abs() <= TOLERANCE
        if not largest <= TOLERANCE or bool((other & ~near & ~tied).any() or (classes_differ & ~tied).any()):
            what = f"probabilities differ by up to {largest:.2g} (allowed: {TOLERANCE:g})"
            raise CheckFailed(f"{name or path} was not written: ONNX and PyTorch disagree, {what}.")
    return ExportCheck(len(images), largest, differ)


def _deployed(
    model: nn.Module,
    example: Tensor,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    parts: Parts,
    temperature: float = 1.0,
) -> Deployed:
    if example.ndim != 4 or len(example) < 2 or example.dtype != torch.float32:
        raise invalid(
            "example", "be float32 images of shape (n, C, H, W), n >= 2", f"{example.dtype} {tuple(example.shape)}"
        )
    channels = example.shape[1]
    mean, std = [0.0] * channels if mean is None else list(mean), [1.0] * channels if std is None else list(std)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise invalid("mean and std", f"give {channels} values, std above 0", f"{mean} and {std}")
    model = model.eval().cpu().float()
    with torch.no_grad():
        n_classes = model(example[:2]).shape[1]
    thresholds = [math.inf] * n_classes
    if parts.rule is not None:
        parts.rule.check_classes(n_classes)
        thresholds = parts.rule.thresholds.tolist()
        temperature *= parts.rule.temperature or 1.0
    mapping, scale = _calibration(parts.calibrator, n_classes)
    return Deployed(
        model, mean=mean, std=std, temperature=scale * temperature, thresholds=thresholds, calibrator=mapping
    ).eval()


def _calibration(calibrator: Calibrator | None, n_classes: int) -> tuple[nn.Module | None, float]:
    """A calibrator as a module, or as a temperature where it is no more than that."""
    if calibrator is None:
        return None, 1.0
    mapping = calibrator.to_module()
    if calibrator.n_classes_ != n_classes:
        raise invalid("calibrator", f"be made for the model's {n_classes} classes", f"{calibrator.n_classes_} classes")
    if calibrator.identity_:
        return None, 1.0
    return (None, calibrator.temperature_) if isinstance(calibrator, TemperatureScaling) else (mapping, 1.0)


def _trace(deployed: Deployed, example: Tensor) -> Any:
    with _quiet():
        return torch.onnx.export(
            deployed,
            (example[:2],),
            dynamo=True,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
            verbose=False,
        )


def _describe(proto: Any, deployed: Deployed, parts: Parts, class_names: Sequence[str] | None) -> None:
    """Say in the file what it holds, for those who find it without its history."""
    rule, calibrator = parts.rule, parts.calibrator
    names = class_names if class_names is not None else (rule.class_names if rule is not None else None)
    facts: dict[str, Any] = {
        "producer": "calibrant",
        "input": "float32 images (n, C, H, W) from 0 to 1 (others are not automated); normalisation is inside",
        "calibrator": None if calibrator is None or calibrator.identity_ else calibrator.method,
        "temperature": deployed.temperature,
        "class_names": None if names is None else list(names),
        "threshold": None if rule is None else rule.threshold,
        "class_thresholds": None if rule is None else rule.class_thresholds,
        "target_accuracy": None if rule is None else rule.target_accuracy,
        "confidence": None if rule is None else rule.confidence,
    }
    for key, value in facts.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"calibrant.{key}", value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs and warns about its own insides; what matters to a user is the comparison that follows."""
    with warnings.catch_warnings(), at_level(logging.ERROR, "torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        yield


def _module(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidInput(f"export needs {name}. Install it with: pip install 'calibrant[export]'") from error
