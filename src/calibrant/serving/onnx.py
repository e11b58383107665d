"""One ONNX file that decides: normalisation, network, calibrator and routing rule inside, checked once written."""

import json
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.errors import CheckFailed, InvalidInput, invalid
from calibrant.files import atomic_write
from calibrant.logs import at_level
from calibrant.serving.module import Deployed

if TYPE_CHECKING:
    from calibrant.posthoc import Calibrator
    from calibrant.routing import RoutingRule

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


def export_onnx(
    model: nn.Module,
    path: str | Path,
    *,
    example: Tensor,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    temperature: float = 1.0,
    calibrator: "Calibrator | None" = None,
    rule: "RoutingRule | None" = None,
    class_names: Sequence[str] | None = None,
) -> ExportCheck:
    """Write an ONNX file and compare it with PyTorch on `example` before it replaces anything.

    Args:
        model: A classifier that gives logits; it is put in evaluation mode.
        path: Where to write, `.onnx`.
        example: Float images on the scale from 0 to 1, shape (n, C, H, W), n >= 2; the more like real ones the better.
        mean: Normalisation per channel; None for none.
        std: Normalisation per channel; None for none.
        temperature: Logits are divided by it. A rule's own temperature comes on top of this one.
        calibrator: A fitted smooth calibrator (temperature, vector, matrix, Dirichlet, beta); it comes first.
        rule: Routing rule; without one nothing is automated.
        class_names: Kept in the file's metadata; a rule's names are the default.

    Returns:
        What the comparison found.

    Raises:
        CheckFailed: The file computes something else than PyTorch.
    """
    onnx = _module("onnx")
    if Path(path).suffix.lower() != ".onnx":
        raise invalid("path", "end in .onnx", str(path))
    deployed = _deployed(model, example, mean, std, temperature, rule, calibrator)
    with torch.no_grad():
        expected = deployed(example)
    if rule is not None:
        rule.check_classes(expected[0].shape[1])
    with atomic_write(path) as temporary:
        program = _trace(deployed, example)
        proto = program.model_proto
        _describe(proto, deployed, rule, calibrator, class_names)
        onnx.checker.check_model(proto, full_check=True)
        temporary.write_bytes(proto.SerializeToString())
        return compare_onnx(temporary, deployed, example, name=str(path))


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
    temperature: float,
    rule: "RoutingRule | None",
    calibrator: "Calibrator | None",
) -> Deployed:
    if example.ndim != 4 or len(example) < 2 or example.dtype != torch.float32:
        raise invalid(
            "example", "be float32 images of shape (n, C, H, W), n >= 2", f"{example.dtype} {tuple(example.shape)}"
        )
    if not 0 < temperature < math.inf:
        raise invalid("temperature", "be positive and finite", temperature)
    channels = example.shape[1]
    mean, std = [0.0] * channels if mean is None else list(mean), [1.0] * channels if std is None else list(std)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise invalid("mean and std", f"give {channels} values, std above 0", f"{mean} and {std}")
    model = model.eval().cpu().float()
    with torch.no_grad():
        classes = model(example[:2]).shape[1]
    thresholds = [math.inf] * classes
    if rule is not None:
        rule.check_classes(classes)
        thresholds = rule.thresholds.tolist()
        temperature *= rule.temperature or 1.0
    mapping, scale = _calibration(calibrator, classes)
    return Deployed(
        model, mean=mean, std=std, temperature=scale * temperature, thresholds=thresholds, calibrator=mapping
    ).eval()


def _calibration(calibrator: "Calibrator | None", classes: int) -> tuple[nn.Module | None, float]:
    """A calibrator as a module, or as a temperature where it is no more than that."""
    from calibrant.posthoc import TemperatureScaling

    if calibrator is None:
        return None, 1.0
    mapping = calibrator.to_module()
    if calibrator.n_classes_ != classes:
        raise invalid("calibrator", f"be made for the model's {classes} classes", f"{calibrator.n_classes_} classes")
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


def _describe(
    proto: Any,
    deployed: Deployed,
    rule: "RoutingRule | None",
    calibrator: "Calibrator | None",
    class_names: Sequence[str] | None,
) -> None:
    """Say in the file what it holds, for whoever finds it without its history."""
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
