"""One ONNX file that decides: network and policy inside, compared with Python before it is kept."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, PolicyLike
from calibrant.deployment.check import ExportCheck, compare_onnx
from calibrant.deployment.contents import Contents, weights_digest
from calibrant.deployment.decider import Decider, policy_for, prepare, torch_scores
from calibrant.deployment.inputs import IMAGE_SLACK, IMAGES, Arrays, InputSpec
from calibrant.deployment.module import Deployed, Head, Normalised, input_names
from calibrant.deployment.onnx_file import CONTENTS, OUTPUTS, SCORES, SHORTLIST, add_facts, library, sealed
from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.files import atomic_write, refuse_overwriting
from calibrant.logs import at_level
from calibrant.training import Run
from calibrant.training.data import load_dataset

# Of a run's own data set, for the comparison.
_REAL_IMAGES = 512
_NOISE_IMAGES = 64


@dataclass(frozen=True)
class Exported(ExportCheck):
    """What was written, and how it compares with Python.

    Attributes:
        path: The file.
        policy: The policy inside.
        compared: What the cases were.
    """

    path: Path
    policy: Policy
    compared: str = "cases of the example"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "path": str(self.path),
            "policy": self.policy.digest,
            "automates": self.policy.automates,
            "calibrated": self.policy.calibrated,
            "shortlist": self.policy.shortlist is not None,
            "cases": self.cases,
            "automated": self.automated,
            "largest_difference": self.largest_difference,
            "decisions_differ": self.decisions_differ,
        }

    def describe(self) -> str:
        """What the file is, for a person."""
        equal = f"On {self.cases} {self.compared} it equals Python to {self.largest_difference:.1g}"
        other = self.decisions_differ
        decisions = f"{other} decisions differ" if other else "all decisions are equal"
        if self.policy.automates:
            told = f"{self.automated} are automated" if self.automated else "the rule automates none of them"
            equal = f"{equal}; {decisions}, {told}"
        return f"Wrote {self.path}. {equal}.\n{self.policy.describe()}"


def export_onnx(
    model: nn.Module | Run | Any,
    path: str | Path | None = None,
    *,
    policy: PolicyLike | None = None,
    raw: bool = False,
    trust_code: bool = False,
    example: Any = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
) -> Exported:
    """Write an ONNX file and compare it with Python before it replaces anything.

    Its outputs are `probabilities`, `predicted`, `automate`, `scores` (what the network says itself) and, with a
    shortlist, `shortlist`. `Decider.load` opens it.

    Args:
        model: A finished run; a classifier in PyTorch that gives logits, which is put in evaluation mode; or a fitted
            scikit-learn classifier with `predict_proba` (skl2onnx converts it).
        path: Where to write, `.onnx`; by default `model.onnx` in the run.
        policy: A policy or its file; by default the run's. Without one nothing is calibrated or automated.
        raw: Do not use the run's policy.
        trust_code: Whether to import a run's network `module:name` that you have not used on this machine before.
        example: Without a run: real cases, n >= 2, the more the better: the file is compared with Python on all of
            them. One tensor (n, ...); tensors by name, which the model then gets by name; for scikit-learn an array.
        ranges: Without a run: smallest and largest number that an input may have, by its name. By default images that
            lie in 0..1 may do so, whole numbers (token ids) lie where those of the example do, and other numbers at
            most half as far beyond them as these lie apart. What lies outside is never automated.
        mean: Without a run, for images (n, C, H, W): normalisation per channel; None for none.
        std: Without a run, for images (n, C, H, W): normalisation per channel; None for none.
        class_names: Kept in the file's metadata; the policy's names are the default.

    Raises:
        CheckFailed: The file computes something else than Python, or automates nothing where the rule does.
    """
    if isinstance(model, Run):
        if any(given is not None for given in (example, ranges, mean, std)):
            raise invalid("example, ranges, mean and std", "be left out for a run, which knows them", "them")
        _require_libraries()
        return _export_run(model, path, policy, class_names, raw=raw, trust_code=trust_code)
    if path is None or example is None:
        raise invalid("path and example", "be given where there is no run", "none")
    if not isinstance(model, nn.Module):
        from calibrant.deployment.sklearn_model import export_estimator

        written: Exported = export_estimator(model, Path(path), policy, example, ranges=ranges, class_names=class_names)
        return written
    _require_libraries()
    model = _normalised(_plain(model, example), example, mean, std)
    return _export_module(model, Path(path), policy, example, ranges, class_names)


def _require_libraries() -> None:
    """Say which library is missing before data are read and the network is traced."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name)


def _export_run(
    run: Run,
    path: str | Path | None,
    policy: PolicyLike | None,
    class_names: Sequence[str] | None,
    *,
    raw: bool,
    trust_code: bool,
) -> Exported:
    # Weights of a run that goes on are not what its figures will be about, and averaged weights come at the very end.
    run.refuse_unfinished()
    checkpoint = run.checkpoint()
    about = checkpoint.values
    if "mean" not in about:
        raise invalid(str(run.path), "be trained by a calibrant that keeps the normalisation", "an older checkpoint")
    target = run.onnx_path if path is None else Path(path)
    given = [policy] if isinstance(policy, str | Path) else []
    refuse_overwriting([target], [*given, run.policy_path, *run.checkpoints.glob("*")])
    if policy is None and not raw:
        policy = run.policy()
    network = run.load_model(checkpoint, trust_code=trust_code).cpu().float()
    images, compared = _images(run, about)
    model = Normalised(network, mean=about["mean"], std=about["std"])
    ranges = {IMAGES: (-IMAGE_SLACK, 1.0 + IMAGE_SLACK)}
    return _export_module(model, target, policy, images, ranges, class_names, compared)


def _images(run: Run, about: Mapping[str, Any]) -> tuple[Tensor, str]:
    """Images to compare on: of the run's data set where that is at hand, and noise around their mean."""
    noise = torch.randn(_NOISE_IMAGES, *about["image_shape"], generator=torch.Generator().manual_seed(0))
    centre, spread = (torch.tensor(about[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    drawn = (centre + spread * noise).clamp(0, 1)
    name = run.recipe.data.name
    # A folder may hold a million photographs, and all of them would be read for a few.
    if not name.startswith("folder:"):
        try:
            test = load_dataset(name).test.images
        except InvalidInput:
            test = torch.empty(0)
        if test.ndim == 4 and list(test.shape[1:]) == list(about["image_shape"]):
            return torch.cat([test[:_REAL_IMAGES].float() / 255, drawn]), f"images (test images of {name}, and noise)"
    return drawn, f"images (of noise: {name} was not read here)"


def _plain(model: nn.Module, example: Any) -> nn.Module:
    """On the CPU, in float32 unless the example is float64."""
    tensors, _ = input_names(model, example)
    wide = any(values.dtype == torch.float64 for values in tensors.values())
    return model.cpu() if wide else model.cpu().float()


def _normalised(model: nn.Module, example: Any, mean: Sequence[float] | None, std: Sequence[float] | None) -> nn.Module:
    if mean is None and std is None:
        return model
    if not isinstance(example, Tensor) or example.ndim != 4:
        raise invalid("mean and std", "be left out for what is no image (n, C, H, W)", "them")
    channels = example.shape[1]
    mean, std = [0.0] * channels if mean is None else list(mean), [1.0] * channels if std is None else list(std)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise invalid("mean and std", f"give {channels} values, std above 0", f"{mean} and {std}")
    return Normalised(model, mean=mean, std=std)


def _export_module(
    model: nn.Module,
    path: Path,
    policy: PolicyLike | None,
    example: Any,
    ranges: Mapping[str, tuple[float, float]] | None,
    class_names: Sequence[str] | None,
    compared: str = "cases of the example",
) -> Exported:
    tensors, _ = input_names(model, example)
    if any(len(values) < 2 for values in tensors.values()):
        raise invalid("example", "hold at least 2 cases", 1)
    network, specs, n_classes = prepare(model, example, ranges)
    own = policy_for(n_classes, policy, class_names)
    contents = Contents(inputs=specs, network=weights_digest(model), policy=own)
    deployed = Deployed(network, Head(own), specs).eval()
    outputs = [*OUTPUTS, SCORES, *([] if own.shortlist is None else [SHORTLIST])]
    proto = trace(deployed, [tensors[spec.name][:2] for spec in specs], [spec.name for spec in specs], outputs)
    decider = Decider.of(contents, torch_scores(network, specs))
    arrays = {spec.name: tensors[spec.name].numpy() for spec in specs}
    return write_checked(proto, path, decider, arrays, compared)


def write_checked(
    proto: Any, path: Path, decider: Decider, arrays: Arrays, compared: str = "cases of the example"
) -> Exported:
    """Describe a model in its metadata, seal it, compare it with Python, and only then let it have its name.

    Args:
        proto: The ONNX model.
        path: Where to write.
        decider: The same model in Python.
        arrays: Cases to compare on, by input.
        compared: What the cases are, for the description.
    """
    onnx = library("onnx")
    if path.suffix.lower() != ".onnx":
        raise invalid("path", "end in .onnx", str(path))
    with atomic_write(path) as temporary:
        add_facts(proto, _facts(decider.contents))
        onnx.checker.check_model(proto, full_check=True)
        temporary.write_bytes(sealed(proto.SerializeToString()))
        check = compare_onnx(temporary, decider, arrays, name=str(path))
    return Exported(**vars(check), path=path, policy=decider.policy, compared=compared)


def trace(
    module: nn.Module,
    example: Sequence[Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    opset: int | None = None,
    packed: bool = True,
) -> Any:
    """A module as an ONNX model for any number of cases.

    Args:
        module: What is computed.
        example: Its inputs.
        inputs: Their names.
        outputs: Names of what it gives.
        opset: Version of the operators; torch's choice by default.
        packed: Whether its `forward` takes `*inputs`.
    """
    library("onnxscript")
    cases = tuple({0: torch.export.Dim.DYNAMIC} for _ in example)
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                tuple(example),
                dynamo=True,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=(cases,) if packed else cases,
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:
            told = one_line(error, most=200) or type(error).__name__
            raise InvalidInput(f"torch.onnx cannot export this network: {told}") from error
    assert program is not None
    return program.model_proto


def _facts(contents: Contents) -> dict[str, str]:
    """What the file holds, for those who find it without its history; `calibrant.contents` is what we read."""
    policy = contents.policy
    rule, calibrator = policy.routing, policy.calibrator if policy.calibrated else None
    scaling = calibrator.temperature_ if isinstance(calibrator, TemperatureScaling) else 1.0
    facts: dict[str, Any] = {
        "calibrant.producer": "calibrant",
        "calibrant.input": "; ".join(_words(spec) for spec in contents.inputs),
        "calibrant.calibrator": None if calibrator is None else calibrator.method,
        "calibrant.temperature": scaling,
        "calibrant.class_names": None if policy.class_names is None else list(policy.class_names),
        "calibrant.threshold": rule.threshold,
        "calibrant.class_thresholds": rule.class_thresholds,
        "calibrant.target_accuracy": rule.target_accuracy,
        "calibrant.confidence": rule.confidence,
        "calibrant.model": contents.network,
        "calibrant.policy": policy.digest,
    }
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
    return {**told, CONTENTS: contents.to_text()}


def _words(spec: InputSpec) -> str:
    shape = ", ".join(("n", *map(str, spec.shape)))
    return f"{spec.name}: {spec.dtype} ({shape}), {spec.range_in_words} (cases outside are not automated)"


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs and warns about its own insides; what matters to a user is the comparison that follows."""
    with warnings.catch_warnings(), at_level(logging.ERROR, "torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        yield
