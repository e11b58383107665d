"""Export a model and its policy as one ONNX file, which is compared with Python before it is kept."""

import hashlib
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy, PolicyLike
from calibrant.decisions.policy import as_policy
from calibrant.deployment.networks import (
    INPUTS,
    Arrays,
    input_names,
    is_module,
    read_specs,
    weights_digest,
    with_one_signature,
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
Ranges = Mapping[str, tuple[float, float]]
# The oldest that has every operator of the policy.
_OPSET = 18
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
    path: str | Path,
    *,
    example: Any,
    policy: PolicyLike | None = None,
    ranges: Ranges | None = None,
    class_names: Sequence[str] | None = None,
    compared: str = _EXAMPLE,
) -> Exported:
    """Write an ONNX file and compare it with Python before it replaces anything.

    Its outputs are `probabilities`, `predicted`, `automate`, `scores` (the raw scores of the network) and, with a
    shortlist, `shortlist`. `Decider.load` opens it.

    Args:
        model: A classifier in PyTorch that returns logits, which is put in evaluation mode; or a fitted scikit-learn
            classifier with `predict_proba` (skl2onnx converts it). A `calibrant.training.Run` has a method of its own,
            `export_to_onnx`.
        path: Where to write, `.onnx`.
        example: Real cases, n >= 2, the more the better: the file is compared with Python on all of them. One tensor
            (n, ...); tensors by name, which the model then gets by name; for scikit-learn an array.
        policy: A policy or its file. Without one nothing is calibrated or automated.
        ranges: Smallest and largest number that an input may have, by its name. By default images that lie in 0..1 may
            do so, whole numbers (token ids) lie in the range of the example, and other numbers may exceed it by half of
            its width. A case outside is never automated.
        class_names: Kept in the file's metadata; the policy's names are the default.
        compared: What the cases of the example are, for the description.

    Raises:
        CheckFailed: The file computes something else than Python, or automates nothing although the rule does.
    """
    target = as_path(path)
    if target.suffix.lower() != ".onnx":
        raise invalid("path", "end in .onnx", str(path))
    if is_module(model):
        require_libraries()
        proto, contents, scores, arrays = _of_module(model, example, ranges, policy, class_names)
    else:
        proto, contents, scores, arrays = _of_estimator(model, example, ranges, policy, class_names)
    onnx = library("onnx")
    # Described in its metadata, sealed and compared before it is renamed.
    with atomic_write(target) as temporary:
        onnx.helper.set_model_props(proto, {CONTENTS: contents.to_text(), SEAL: EMPTY_SEAL})
        onnx.checker.check_model(proto, full_check=True)
        temporary.write_bytes(sealed(proto.SerializeToString()))
        return replace(compare_onnx(temporary, contents, scores, arrays), path=target, compared=compared)


def require_libraries() -> None:
    """Raise if a library is missing, before data are read and the network is traced."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name)


def _of_module(
    model: "nn.Module", example: Any, ranges: Ranges | None, policy: PolicyLike | None, names: Sequence[str] | None
) -> tuple[Any, Contents, NDArray[Any], Arrays]:
    """A torch network with its policy as ONNX, what is known about it, and its scores of the cases to compare."""
    import torch

    tensors = input_names(example)
    if any(len(values) < 2 for values in tensors.values()):
        raise invalid("example", "hold at least 2 cases", 1)
    specs = read_specs(tensors, ranges)
    model = model.cpu().eval()
    if all(values.dtype != torch.float64 for values in tensors.values()):
        model = model.float()
    network = with_one_signature(model, list(tensors), by_name=isinstance(example, Mapping))
    scores = _scores(network, list(tensors.values()))
    applied = _policy_for(scores.shape[1], policy, names)
    contents = Contents(inputs=specs, network=weights_digest(model), policy=applied)
    traced = _trace(network, {name: values[:2] for name, values in tensors.items()})
    arrays = {name: values.numpy() for name, values in tensors.items()}
    return deployable(traced, contents), contents, scores, arrays


def _scores(network: "nn.Module", inputs: Sequence["Tensor"]) -> NDArray[Any]:
    """Logits (n, K) of a network."""
    import torch

    starts = range(0, len(inputs[0]), _BATCH)
    try:
        with torch.no_grad():
            logits = torch.cat([network(*(values[at : at + _BATCH] for values in inputs)) for at in starts])
    except Exception as error:
        raise InvalidInput(f"model must take its example: {type(error).__name__}: {str(error)[:200]}") from error
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise invalid("model", "give logits of shape (cases, classes)", tuple(logits.shape))
    return np.asarray(logits.numpy())


def _of_estimator(
    estimator: Any, example: Any, ranges: Ranges | None, policy: PolicyLike | None, names: Sequence[str] | None
) -> tuple[Any, Contents, NDArray[Any], Arrays]:
    """The same for a fitted scikit-learn classifier or pipeline; its input is called `inputs`."""
    if not callable(getattr(estimator, "predict_proba", None)) or not hasattr(estimator, "classes_"):
        rule = "be a torch.nn.Module or a fitted scikit-learn classifier with predict_proba"
        hint = ""
        if callable(getattr(estimator, "decision_function", None)):
            hint = "scikit-learn's CalibratedClassifierCV adds predict_proba to a classifier that has none."
        raise invalid("model", rule, type(estimator).__name__, hint)
    rows = np.asarray(example)
    if rows.ndim != 2 or len(rows) < 2 or rows.dtype.kind not in "iuf":
        hint = ""
        if rows.dtype.kind == "O":
            hint = "Encode columns of text before the model, and export the model alone."
        raise invalid("example", "be numbers of shape (n, features), n >= 2", f"{rows.dtype} {rows.shape}", hint)
    proto, dtype = _convert_estimator(estimator, rows)
    arrays = {INPUTS: rows.astype(dtype)}
    contents = Contents(
        inputs=read_specs(arrays, ranges),
        network=hashlib.sha256(proto.graph.SerializeToString(deterministic=True)).hexdigest(),
        kind="probabilities",
        policy=_policy_for(len(estimator.classes_), policy, tuple(map(str, names or estimator.classes_))),
    )

    with warnings.catch_warnings():
        # An estimator that was fitted on a table with named columns warns that an array has none.
        warnings.simplefilter("ignore")
        scores = np.asarray(estimator.predict_proba(arrays[INPUTS]))
    return deployable(proto, contents, output=1), contents, scores, arrays


def _policy_for(n_classes: int, policy: PolicyLike | None, class_names: Sequence[str] | None) -> Policy:
    """The policy of a model with this many classes; one that automates nothing if none is given."""
    found = Policy(n_classes) if policy is None else as_policy(policy)
    if found.n_classes != n_classes:
        raise invalid("policy", f"be made for the model's {n_classes} classes", f"one for {found.n_classes} classes")
    found.routing  # noqa: B018 (a rule for sensitivity and specificity is refused)
    if class_names is None:
        return found
    return replace(found, class_names=tuple(class_names))


def _convert_estimator(estimator: Any, rows: NDArray[Any]) -> tuple[Any, str]:
    """The estimator as ONNX, and the type of its inputs.

    In double precision if the converter and the runtime can do it: linear models then equal scikit-learn's to the last
    digits. Trees exist in single precision only.
    """
    skl2onnx = library("skl2onnx", "sklearn-export")
    types = library("skl2onnx.common.data_types", "sklearn-export")
    message = ""
    for dtype, kind in (("float64", types.DoubleTensorType), ("float32", types.FloatTensorType)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                proto = skl2onnx.to_onnx(
                    estimator,
                    initial_types=[(INPUTS, kind([None, rows.shape[1]]))],
                    options={"zipmap": False},
                    target_opset={"": _OPSET, "ai.onnx.ml": 3},
                )
            session = open_session(proto.SerializeToString(), "the estimator")
            output = session.get_outputs()[1].name
            session.run([output], {INPUTS: rows[:2].astype(dtype)})
        except Exception as error:  # noqa: BLE001 (the other type may work; the last message is shown)
            message = " ".join(str(error).split())[:100]
        else:
            return proto, dtype
    hint = "Keep the model in Python: policy.decide(model.predict_proba(rows), kind='probabilities')."
    if type(estimator).__name__ == "CalibratedClassifier":
        hint = "Export the classifier that it wraps, and let fit_policy fit the calibrator."
    raise InvalidInput(f"skl2onnx cannot convert {type(estimator).__name__}: {message.rstrip('. ')}. {hint}")


def _trace(module: "nn.Module", example: Mapping[str, "Tensor"]) -> Any:
    """A network as an ONNX model for any number of cases, from cases by input; its output is `scores`."""
    import torch

    # Silence the exporter about its internals; the comparison that follows matters to users.
    with warnings.catch_warnings(), at_level(logging.ERROR, "torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module,
                tuple(example.values()),
                dynamo=True,
                input_names=list(example),
                output_names=[SCORES],
                dynamic_shapes=(tuple({0: torch.export.Dim.DYNAMIC} for _ in example),),
                verbose=False,
            )
        except Exception as error:
            message = one_line(error, most=200) or type(error).__name__
            raise InvalidInput(f"torch.onnx cannot export this network: {message}") from error
    assert program is not None
    return program.model_proto


def compare_onnx(path: Path, contents: Contents, in_python: NDArray[Any], arrays: Arrays) -> Exported:
    """Run a file with onnxruntime and compare it with the model's scores in Python: first the scores, then decisions.

    Raises `CheckFailed` if the file computes something else, or automates nothing although the rule does. The cases may
    lie outside the ranges of the inputs; one that the rule would automate and the file does not is a difference.
    """
    policy = contents.policy
    session = open_session(path.read_bytes(), "the exported file")
    total = len(next(iter(arrays.values())))
    # The first case alone as well: onnxruntime computes a batch of one differently.
    parts = [slice(0, 1), *(slice(start, start + _BATCH) for start in range(0, total, _BATCH))]
    batches = [{name: values[part] for name, values in arrays.items()} for part in parts]
    outputs = [session.run(output_names(policy), batch) for batch in batches]
    probabilities, predicted, automate, scores, *listed = map(np.concatenate, zip(*outputs, strict=True))
    in_python = np.concatenate([in_python[:1], in_python])
    inside = np.logical_and.reduce([spec.inside(arrays[spec.name]) for spec in contents.inputs])
    inside = np.concatenate([inside[:1], inside])

    difference = np.abs(probabilities_of(scores, contents.kind) - probabilities_of(in_python, contents.kind))
    largest = float(difference.max())
    if not largest <= _TOLERANCE:
        raise _disagree(f"probabilities differ by up to {largest:.2g} (allowed: {_TOLERANCE:g})")
    judged = contents.judge(scores)
    routed = judged.routed
    off = float(np.abs(judged.probabilities - probabilities).max())
    # A decision may differ only if the score is the threshold itself, or two classes are equally probable.
    near = np.abs(routed.ranking - policy.routing.thresholds[routed.predicted]) <= _POLICY_TOLERANCE
    top = np.sort(judged.probabilities, axis=1)
    tied = top[:, -1] - top[:, -2] <= _POLICY_TOLERANCE
    wrong = (automate != (routed.automate & inside)) & ~near & ~tied
    if not off <= _POLICY_TOLERANCE or wrong.any() or ((predicted != routed.predicted) & ~tied).any():
        raise _disagree(f"calibrated probabilities by up to {off:.2g}, decisions in {int(wrong.sum())} cases")
    if policy.shortlist is not None:
        edge = np.abs(judged.probabilities - policy.shortlist.least).min(axis=1) <= _POLICY_TOLERANCE
        if ((listed[0] != judged.listed).any(axis=1) & inside & ~edge & ~near & ~tied).any():
            raise _disagree("shortlists differ")
    by_rule, by_file = contents.judge(in_python).routed.automate[1:], automate[1:]
    automated = int(by_rule.sum())
    if automated and not by_file.any():
        why = "it differs"
        if not inside.all():
            why = "the cases lie outside the ranges that it was exported for"
        raise CheckFailed(
            f"The file was not written: the rule automates {automated} of {total} cases and the file none: {why}."
        )
    return Exported(path, policy, total, automated, largest, int((by_rule != by_file).sum()))


def _disagree(what: str) -> CheckFailed:
    return CheckFailed(f"The file was not written: ONNX and Python disagree, {what}.")
