"""One ONNX file that decides: model and policy inside, compared with Python before it is kept."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.decisions import Policy, PolicyLike
from calibrant.deployment.check import ExportCheck, compare_onnx
from calibrant.deployment.contents import Contents, weights_digest
from calibrant.deployment.decider import Decider, policy_for, prepare, torch_scores
from calibrant.deployment.graph import deployable
from calibrant.deployment.inputs import Arrays, InputSpec
from calibrant.deployment.module import input_names, is_module, normalised
from calibrant.deployment.onnx_file import CONTENTS, SCORES, add_facts, library, sealed
from calibrant.errors import InvalidInput, at_level, invalid, one_line
from calibrant.files import atomic_write

if TYPE_CHECKING:
    from torch import Tensor, nn


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
        if self.policy.automates:
            decisions = "all decisions are equal"
            if self.decisions_differ:
                decisions = f"{self.decisions_differ} decisions differ"
            automated = "the rule automates none of them"
            if self.automated:
                automated = f"{self.automated} are automated"
            equal = f"{equal}; {decisions}, {automated}"
        return f"Wrote {self.path}. {equal}.\n{self.policy.describe()}"


def export_onnx(
    model: Any,
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
        model: A finished `calibrant.training.Run`; a classifier in PyTorch that returns logits, which is put in
            evaluation mode; or a fitted scikit-learn classifier with `predict_proba` (skl2onnx converts it).
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
        CheckFailed: The file computes something else than Python, or automates nothing although the rule does.
    """
    if hasattr(model, "export_to_onnx"):
        if any(argument is not None for argument in (example, ranges, mean, std)):
            raise invalid("example, ranges, mean and std", "be left out for a run, which knows them", "them")
        require_libraries()
        of_run: Exported = model.export_to_onnx(
            path, policy=policy, raw=raw, trust_code=trust_code, class_names=class_names
        )
        return of_run
    if path is None or example is None:
        raise invalid("path and example", "be given for a model that is no run", "none")
    if not is_module(model):
        from calibrant.deployment.sklearn_model import export_estimator

        written: Exported = export_estimator(model, Path(path), policy, example, ranges=ranges, class_names=class_names)
        return written
    require_libraries()
    model = _normalised(_plain(model, example), example, mean, std)
    return export_module(model, Path(path), policy, example, ranges=ranges, class_names=class_names)


def require_libraries() -> None:
    """Say which library is missing before data are read and the network is traced."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name)


def export_module(
    model: "nn.Module",
    path: Path,
    policy: PolicyLike | None,
    example: Any,
    *,
    ranges: Mapping[str, tuple[float, float]] | None,
    class_names: Sequence[str] | None,
    compared: str = "cases of the example",
) -> Exported:
    """Write a torch network that takes its inputs as they come.

    Args:
        model: Returns logits.
        path: Where to write.
        policy: A policy or its file; None for none.
        example: See `export_onnx`.
        ranges: See `export_onnx`.
        class_names: See `export_onnx`.
        compared: What the cases of the example are, for the description.
    """
    tensors, _ = input_names(model, example)
    if any(len(values) < 2 for values in tensors.values()):
        raise invalid("example", "hold at least 2 cases", 1)
    network, specs, n_classes = prepare(model, example, ranges)
    own = policy_for(n_classes, policy, class_names)
    contents = Contents(inputs=specs, network=weights_digest(model), policy=own)
    bare = _trace(network, [tensors[spec.name][:2] for spec in specs], [spec.name for spec in specs])
    decider = Decider.of(contents, torch_scores(network, specs))
    arrays = {spec.name: tensors[spec.name].numpy() for spec in specs}
    return write_checked(deployable(bare, contents), path, decider, arrays, compared)


def _plain(model: "nn.Module", example: Any) -> "nn.Module":
    """On the CPU, in float32 unless the example is float64."""
    import torch

    tensors, _ = input_names(model, example)
    model = model.cpu()
    if any(values.dtype == torch.float64 for values in tensors.values()):
        return model
    return model.float()


def _normalised(
    model: "nn.Module", example: Any, mean: Sequence[float] | None, std: Sequence[float] | None
) -> "nn.Module":
    if mean is None and std is None:
        return model
    if getattr(example, "ndim", 0) != 4:
        raise invalid("mean and std", "be left out for what is no image (n, C, H, W)", "them")
    channels = example.shape[1]
    means = list(mean or [0.0] * channels)
    stds = list(std or [1.0] * channels)
    if len(means) != channels or len(stds) != channels or min(stds) <= 0:
        raise invalid("mean and std", f"give {channels} values, std above 0", f"{means} and {stds}")
    return normalised(model, mean=means, std=stds)


def write_checked(
    proto: Any, path: Path, decider: Decider, arrays: Arrays, compared: str = "cases of the example"
) -> Exported:
    """Describe a model in its metadata, seal it, compare it with Python, and only then rename it to `path`.

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


def _trace(module: "nn.Module", example: Sequence["Tensor"], inputs: Sequence[str]) -> Any:
    """A network as an ONNX model for any number of cases; its output is `scores`."""
    import torch

    library("onnxscript")
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                tuple(example),
                dynamo=True,
                input_names=list(inputs),
                output_names=[SCORES],
                dynamic_shapes=(tuple({0: torch.export.Dim.DYNAMIC} for _ in example),),
                verbose=False,
            )
        except Exception as error:
            message = one_line(error, most=200) or type(error).__name__
            raise InvalidInput(f"torch.onnx cannot export this network: {message}") from error
    assert program is not None
    return program.model_proto


def _facts(contents: Contents) -> dict[str, str]:
    """What the file holds, for those who find it without its history. Calibrant reads `calibrant.contents`."""
    policy = contents.policy
    rule = policy.routing
    method, temperature, class_names = None, 1.0, None
    if policy.calibrator is not None and policy.calibrated:
        method = policy.calibrator.method
        temperature = policy.calibrator.fitted_numbers().get("temperature", 1.0)
    if policy.class_names is not None:
        class_names = list(policy.class_names)
    facts: dict[str, Any] = {
        "calibrant.producer": "calibrant",
        "calibrant.input": "; ".join(_words(spec) for spec in contents.inputs),
        "calibrant.calibrator": method,
        "calibrant.temperature": temperature,
        "calibrant.class_names": class_names,
        "calibrant.threshold": rule.threshold,
        "calibrant.class_thresholds": rule.class_thresholds,
        "calibrant.target_accuracy": rule.target_accuracy,
        "calibrant.confidence": rule.confidence,
        "calibrant.model": contents.network,
        "calibrant.policy": policy.digest,
    }
    for key, value in facts.items():
        if not isinstance(value, str):
            facts[key] = json.dumps(value)
    return {**facts, CONTENTS: contents.to_text()}


def _words(spec: InputSpec) -> str:
    shape = ", ".join(("n", *map(str, spec.shape)))
    return f"{spec.name}: {spec.dtype} ({shape}), {spec.range_in_words} (cases outside are not automated)"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's logs and warnings about its internals; the comparison that follows matters to users."""
    with warnings.catch_warnings(), at_level(logging.ERROR, "torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        yield
