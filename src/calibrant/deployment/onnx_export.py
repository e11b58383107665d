"""Export a model and its policy as one ONNX file, which is compared with Python before it is kept."""

import hashlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy, PolicyLike
from calibrant.decisions.multilabel import MultiLabel
from calibrant.deployment.decider import Decider, policy_for
from calibrant.deployment.input_spec import INPUTS, Arrays, read_specs
from calibrant.deployment.networks import (
    convert_estimator,
    estimator_scores,
    input_names,
    is_module,
    normalised,
    prepare,
    torch_scores,
    weights_digest,
)
from calibrant.deployment.onnx_file import (
    CONTENTS,
    EMPTY_SEAL,
    SCORES,
    SEAL,
    Contents,
    deployable,
    library,
    open_session,
    output_names,
    sealed,
)
from calibrant.errors import CheckFailed, InvalidInput, at_level, invalid, one_line
from calibrant.files import as_path, atomic_write
from calibrant.predictions.rows import probabilities_of
from calibrant.tables import ShownFields

if TYPE_CHECKING:
    from torch import Tensor, nn

# Allowed between the probabilities of two libraries for the same network.
_TOLERANCE = 1e-5
# Allowed between the file and Python for the same scores; the file gives probabilities in float32.
_POLICY_TOLERANCE = 1e-6
_BATCH = 256
_EXAMPLE = "cases of the example"


@dataclass(frozen=True)
class Exported(ShownFields):
    """What was written, and how it compares with Python on the same cases.

    Attributes:
        path: The file.
        policy: The policy inside.
        cases: How many cases were compared.
        automated: How many of them the rule automates.
        largest_difference: Largest difference of any probability of the network.
        decisions_differ: Cases whose decision differs, because a threshold lies between two roundings.
        compared: What the cases were.
    """

    path: Path
    policy: Policy
    cases: int
    automated: int
    largest_difference: float
    decisions_differ: int
    compared: str = _EXAMPLE

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

    Its outputs are `probabilities`, `predicted`, `automate`, `scores` (the raw scores of the network) and, with a
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
            lie in 0..1 may do so, whole numbers (token ids) lie in the range of the example, and other numbers may
            exceed it by half of its width. A case outside is never automated.
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
        return _export_estimator(model, Path(path), policy, example, ranges=ranges, class_names=class_names)
    require_libraries()
    import torch

    tensors = input_names(example)
    model = model.cpu()
    if all(values.dtype != torch.float64 for values in tensors.values()):
        model = model.float()
    model = _normalised(model, example, mean, std)
    return export_module(model, Path(path), policy, example, ranges=ranges, class_names=class_names)


def export_labels(rules: MultiLabel, path: str | Path) -> Path:
    """Write an ONNX file that decides from the probabilities of the labels.

    Its input is `probabilities`, float, shape (n, L), and its output `decisions`, int8, same shape: -1 for negative, 1
    for positive, 0 for a person. Behind a network: `onnx.compose.merge_models(network, file, io_map=[("probabilities",
    "probabilities")])`. The file compares in float64, so it decides as Python does.
    """
    onnx = library("onnx")
    target = as_path(path)
    if target.suffix.lower() != ".onnx":
        raise invalid("path", "end in .onnx", str(path))
    helper, types = onnx.helper, onnx.TensorProto
    limits = {"low": [rule.low for _, rule in rules.rules], "high": [rule.upper for _, rule in rules.rules]}
    constants = [onnx.numpy_helper.from_array(np.array(values), name) for name, values in limits.items()]
    nodes = [
        helper.make_node("Cast", ["probabilities"], ["wide"], to=types.DOUBLE),
        helper.make_node("Less", ["wide", "low"], ["negative"]),
        helper.make_node("GreaterOrEqual", ["wide", "high"], ["positive"]),
        helper.make_node("Cast", ["negative"], ["below"], to=types.INT32),
        helper.make_node("Cast", ["positive"], ["above"], to=types.INT32),
        helper.make_node("Sub", ["above", "below"], ["difference"]),
        helper.make_node("Cast", ["difference"], ["decisions"], to=types.INT8),
    ]
    shape = ["cases", len(rules.labels)]
    inputs = [helper.make_tensor_value_info("probabilities", types.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("decisions", types.INT8, shape)]
    graph = helper.make_graph(nodes, "labels", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {"calibrant.labels": json.dumps(rules.to_dict())})
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(target) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return target


def require_libraries() -> None:
    """Raise if a library is missing, before data are read and the network is traced."""
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
    compared: str = _EXAMPLE,
) -> Exported:
    """Export a torch network that needs no normalisation; the arguments are those of `export_onnx`.

    `compared` says in the description what the cases of the example are.
    """
    tensors = input_names(example)
    if any(len(values) < 2 for values in tensors.values()):
        raise invalid("example", "hold at least 2 cases", 1)
    network, specs, n_classes = prepare(model, example, ranges)
    contents = Contents(inputs=specs, network=weights_digest(model), policy=policy_for(n_classes, policy, class_names))
    traced = _trace(network, [tensors[spec.name][:2] for spec in specs], [spec.name for spec in specs])
    decider = Decider.of(contents, torch_scores(network, specs))
    arrays = {spec.name: tensors[spec.name].numpy() for spec in specs}
    return _write_checked(deployable(traced, contents), path, decider, arrays, compared)


def _export_estimator(
    estimator: Any,
    path: Path,
    policy: PolicyLike | None,
    example: Any,
    *,
    ranges: Mapping[str, tuple[float, float]] | None,
    class_names: Sequence[str] | None,
) -> Exported:
    """Export a fitted scikit-learn classifier or pipeline; its input is called `inputs`."""
    if not callable(getattr(estimator, "predict_proba", None)) or not hasattr(estimator, "classes_"):
        rule = "be a run, a torch.nn.Module or a fitted scikit-learn classifier with predict_proba"
        raise invalid("model", rule, type(estimator).__name__)
    rows = np.asarray(example)
    if rows.ndim != 2 or len(rows) < 2 or rows.dtype.kind not in "iuf":
        raise invalid("example", "be numbers of shape (n, features), n >= 2", f"{rows.dtype} {rows.shape}")
    proto, dtype = convert_estimator(estimator, rows)
    arrays = {INPUTS: rows.astype(dtype)}
    names = tuple(map(str, class_names or estimator.classes_))
    contents = Contents(
        inputs=read_specs(arrays, ranges),
        network=hashlib.sha256(proto.graph.SerializeToString(deterministic=True)).hexdigest(),
        kind="probabilities",
        policy=policy_for(len(estimator.classes_), policy, names),
    )
    decider = Decider.of(contents, estimator_scores(estimator))
    return _write_checked(deployable(proto, contents, output=1), path, decider, arrays, _EXAMPLE)


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


def _trace(module: "nn.Module", example: Sequence["Tensor"], inputs: Sequence[str]) -> Any:
    """A network as an ONNX model for any number of cases; its output is `scores`."""
    import torch

    # Silence the exporter about its internals; the comparison that follows matters to users.
    with warnings.catch_warnings(), at_level(logging.ERROR, "torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
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


def _write_checked(proto: Any, path: Path, decider: Decider, arrays: Arrays, compared: str) -> Exported:
    """Describe a model in its metadata, seal it, compare it with Python, and only then rename it to `path`."""
    onnx = library("onnx")
    if path.suffix.lower() != ".onnx":
        raise invalid("path", "end in .onnx", str(path))
    with atomic_write(path) as temporary:
        onnx.helper.set_model_props(proto, {CONTENTS: decider.contents.to_text(), SEAL: EMPTY_SEAL})
        onnx.checker.check_model(proto, full_check=True)
        temporary.write_bytes(sealed(proto.SerializeToString()))
        return compare_onnx(temporary, decider, arrays, named=path, compared=compared)


def compare_onnx(
    path: Path, decider: Decider, arrays: Arrays, *, named: Path | None = None, compared: str = _EXAMPLE
) -> Exported:
    """Run a file with onnxruntime and compare it with the same model in Python: first the scores, then the decisions.

    Raises `CheckFailed` if the file computes something else, or automates nothing although the rule does. The cases may
    lie outside the ranges of the inputs; one that the rule would automate and the file does not is a difference.
    Messages and the result name the path `named`.
    """
    place, contents = named or path, decider.contents
    policy = contents.policy
    session = open_session(path.read_bytes(), str(place))
    total = len(next(iter(arrays.values())))
    # The first case alone as well: onnxruntime computes a batch of one differently.
    parts = [slice(0, 1), *(slice(start, start + _BATCH) for start in range(0, total, _BATCH))]
    batches = [{name: values[part] for name, values in arrays.items()} for part in parts]
    outputs = [session.run(output_names(policy), batch) for batch in batches]
    probabilities, predicted, automate, scores, *listed = map(np.concatenate, zip(*outputs, strict=True))
    in_python = np.concatenate([decider.score(batch) for batch in batches])
    inside = np.concatenate([_inside(contents, batch) for batch in batches])

    difference = np.abs(probabilities_of(scores, contents.kind) - probabilities_of(in_python, contents.kind))
    largest = float(difference.max())
    if not largest <= _TOLERANCE:
        raise _disagree(place, f"probabilities differ by up to {largest:.2g} (allowed: {_TOLERANCE:g})")
    judged = contents.judge(scores)
    routed = judged.routed
    off = float(np.abs(judged.probabilities - probabilities).max())
    # A decision may differ only if the score is the threshold itself, or two classes are equally probable.
    near = np.abs(routed.ranking - policy.routing.thresholds[routed.predicted]) <= _POLICY_TOLERANCE
    top = np.sort(judged.probabilities, axis=1)
    tied = top[:, -1] - top[:, -2] <= _POLICY_TOLERANCE
    wrong = (automate != (routed.automate & inside)) & ~near & ~tied
    if not off <= _POLICY_TOLERANCE or wrong.any() or ((predicted != routed.predicted) & ~tied).any():
        raise _disagree(place, f"calibrated probabilities by up to {off:.2g}, decisions in {int(wrong.sum())} cases")
    if policy.shortlist is not None:
        edge = np.abs(judged.probabilities - policy.shortlist.least).min(axis=1) <= _POLICY_TOLERANCE
        if ((listed[0] != judged.listed).any(axis=1) & inside & ~edge & ~near & ~tied).any():
            raise _disagree(place, "shortlists differ")
    by_rule, by_file = contents.judge(in_python).routed.automate[1:], automate[1:]
    automated = int(by_rule.sum())
    if automated and not by_file.any():
        why = "it differs"
        if not inside.all():
            why = "the cases lie outside the ranges that it was exported for"
        raise CheckFailed(
            f"{place} was not written: the rule automates {automated} of {total} cases and the file none: {why}."
        )
    return Exported(place, policy, total, automated, largest, int((by_rule != by_file).sum()), compared)


def _inside(contents: Contents, arrays: Arrays) -> NDArray[np.bool_]:
    return np.asarray(np.logical_and.reduce([spec.inside(arrays[spec.name]) for spec in contents.inputs]))


def _disagree(place: Path, what: str) -> CheckFailed:
    return CheckFailed(f"{place} was not written: ONNX and Python disagree, {what}.")
