"""An exported file: its ONNX graph, what it says about itself, the seal that shows changes, and how it is run.

The graph is that of the model, followed by the policy, built from fitted parameters. Everything after the scores is
computed in float64, as `Policy.probabilities` and `RoutingRule.decide` compute it.
"""

import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration.operations import Recorder, Symbol
from calibrant.decisions import Policy, Routed, RoutingRule
from calibrant.decisions.ranking import is_bounded, ranked, score_name
from calibrant.deployment.networks import Arrays, InputSpec, Score
from calibrant.errors import InvalidInput, importing, invalid, one_line
from calibrant.files import as_path, parse_json, reading, typed
from calibrant.predictions import Kind

SCORES = "scores"
SHORTLIST = "shortlist"
CONTENTS, SEAL = "calibrant.contents", "calibrant.sha256"
_FORMAT = 2
EMPTY_SEAL = "0" * 64
# How protobuf writes the entry: its key, then field 2 (0x12) of 64 (0x40) bytes.
_ENTRY = re.compile(re.escape(SEAL.encode()) + rb"\x12\x40([0-9a-f]{64})")
_AGAIN = "Export it again: calibrant export."
# A threshold is the confidence of a case, or of many if the calibrator has level stretches. The softmax of another
# library differs in the last digits: a threshold that is a little lower keeps such cases on their side.
_NUDGE = 1e-12
# Replaces a probability of 0 if its logarithm is needed; see `logits_of`.
_SMALLEST = {"float32": 1e-45, "float64": 5e-324}
_MODEL, _POLICY = "model_", "policy_"


def library(name: str, extra: str = "export") -> Any:
    """Import a library when it is used, with one line on how to install it if it is missing."""
    with importing("this", name, extra):
        return import_module(name)


@dataclass(frozen=True)
class Judged:
    """Scores after a policy."""

    probabilities: NDArray[np.float64]  # calibrated, (n, K)
    routed: Routed
    listed: NDArray[np.bool_] | None  # with a shortlist: the classes for a person, (n, K); none for automated cases


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is known about a model besides its network."""

    inputs: tuple[InputSpec, ...]
    network: str  # SHA-256 of its weights, or of its file
    policy: Policy
    kind: Kind = "logits"  # what the network gives

    def __post_init__(self) -> None:
        """Refuse a calibrator that was fitted on another kind of scores, and thresholds per group."""
        rule = self.policy.rule
        if isinstance(rule, RoutingRule) and rule.group_thresholds is not None:
            hint = "Use calibrant route apply, or a rule with one threshold for all groups (--groups)."
            raise invalid("policy", "decide without the group of a case", f"a threshold per {rule.groups!r}", hint)
        if isinstance(rule, RoutingRule) and not is_bounded(rule.score):
            hint = "Use calibrant route apply, or fit a rule with --score auto."
            wanted = "rank by a score that can be computed from the scores of all classes"
            raise invalid("policy", wanted, f"the score {score_name(rule.score)!r}", hint)
        if self.policy.calibrator is not None:
            self.policy.calibrator.refuse_other_kind(self.kind)

    def judge(self, scores: NDArray[Any]) -> Judged:
        """Scores (n, K) of the network to decisions, number by number as `calibrant route apply` does it."""
        policy = self.policy
        probabilities = policy.probabilities(scores, self.kind)
        routed = policy.routing.decide(probabilities)
        if policy.shortlist is None:
            return Judged(probabilities, routed, None)
        return Judged(probabilities, routed, policy.listed(probabilities, routed.automate))

    def to_text(self) -> str:
        """As JSON, for the metadata of a file."""
        content = {
            "format": _FORMAT,
            "inputs": [asdict(spec) for spec in self.inputs],
            "network": self.network,
            "kind": self.kind,
            "policy": self.policy.to_dict(),
        }
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_text(cls, text: str, *, where: str) -> "Contents":
        """What `to_text` wrote; anything else is refused. Messages name the file `where`."""
        found = parse_json(text, where)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise invalid(where, f"hold contents of format {_FORMAT}", "others", "Use the calibrant that wrote it.")
        kept = typed(_Kept, {k: v for k, v in found.items() if k != "format"}, what="exported model", where=where)
        policy = Policy.from_dict(kept.policy, where=where)
        return cls(inputs=kept.inputs, network=kept.network, policy=policy, kind=kept.kind)


@dataclass(frozen=True)
class _Kept:
    """What the JSON holds."""

    inputs: tuple[InputSpec, ...]
    network: str
    kind: Kind
    policy: dict[str, Any]


def deployable(model: Any, contents: Contents, *, output: int = 0) -> Any:
    """Join the ONNX graph of a network or estimator with its policy: raw inputs in, decisions out.

    A case with a number outside the range of its input (images from 0 to 255 by mistake, NaN) is never automated: no
    promise was made for it, and networks are confident about anything. The inputs of `model` have the names in
    `contents`; `output` says which of its outputs holds the scores.
    """
    onnx = library("onnx")
    helper = onnx.helper
    network = onnx.compose.add_prefix(model, _MODEL).graph
    scores = network.output[output]
    precision = str(np.dtype(helper.tensor_dtype_to_np_dtype(scores.type.tensor_type.elem_type)))
    recorder = Recorder(prefix=_POLICY)
    inside = _prepare_inputs(recorder, contents.inputs)
    prepared = len(recorder.steps_taken)
    recorder.step("Identity", recorder.input(scores.name), output=SCORES)
    _decide(recorder, contents, precision, inside)
    outputs = _outputs(contents.policy, precision)
    nodes = []
    for step in recorder.steps_taken:
        attributes = dict(step.attributes)
        if "to" in attributes:
            attributes["to"] = _type(onnx, attributes["to"])
        nodes.append(helper.make_node(step.operator, step.inputs, [step.output], name=step.output, **attributes))
    graph = helper.make_graph(
        [*nodes[:prepared], *network.node, *nodes[prepared:]],
        "calibrant",
        [helper.make_tensor_value_info(s.name, _type(onnx, s.dtype), ["n", *s.shape]) for s in contents.inputs],
        [helper.make_tensor_value_info(name, _type(onnx, kind), shape) for name, (kind, shape) in outputs.items()],
        initializer=[
            *network.initializer,
            *(onnx.numpy_helper.from_array(array, name) for name, array in recorder.constants.items()),
        ],
    )
    graph.sparse_initializer.extend(network.sparse_initializer)
    opsets = [helper.make_opsetid(each.domain, each.version) for each in model.opset_import]
    functions = list(onnx.compose.add_prefix(model, _MODEL).functions)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=model.ir_version)


def output_names(policy: Policy) -> list[str]:
    """What the file of a model with this policy returns."""
    return list(_outputs(policy, "float32"))


def _prepare_inputs(recorder: Recorder, specs: tuple[InputSpec, ...]) -> Symbol:
    """Hand the inputs to the network, and say which cases lie in the ranges."""
    checks = []
    for spec in specs:
        values = recorder.input(spec.name)
        low, high = spec.low, spec.high
        if spec.whole:
            low, high = math.ceil(low), math.floor(high)
        lowest, highest = np.array(low, dtype=spec.dtype), np.array(high, dtype=spec.dtype)
        # Number by number, because a comparison with NaN is False, while minima and maxima of a runtime may skip it.
        flat = recorder.step("Reshape", values, np.array([0, -1]))
        fine = recorder.step("Cast", (flat >= lowest) & (flat <= highest), to="float32")
        checks.append(recorder.step("ReduceMin", fine, np.array([1]), keepdims=0) > np.float32(0.5))
        if spec.whole:
            # A token id that the table does not have would end the run of the file for all other cases, too.
            values = recorder.minimum(recorder.maximum(values, lowest), highest)
        recorder.step("Identity", values, output=f"{_MODEL}{spec.name}")
    inside = checks[0]
    for check in checks[1:]:
        inside = inside & check
    return inside


def _decide(recorder: Recorder, contents: Contents, precision: str, inside: Symbol) -> None:
    policy = contents.policy
    probabilities = _probabilities(recorder, contents, precision)
    recorder.step("Cast", probabilities, to="float32", output="probabilities")
    predicted = recorder.step("ArgMax", probabilities, axis=1, keepdims=0, output="predicted")
    score = score_name(policy.routing.score)
    ranks = recorder.step("Squeeze", ranked(recorder, score, probabilities, policy.n_classes), np.array([1]))
    # Thresholds a little lower, but never by more than half of what is left above them: confidences of a saturated
    # model lie within 1e-12 of 1, and a rule that automates only a confidence of 1 was not shown to be right for those
    # just below. Infinity stands for a class that is never automated, and stays.
    exact = policy.routing.thresholds
    lowered = exact - np.minimum(_NUDGE, np.maximum(1.0 - exact, 0.0) / 2.0)
    reached = ranks >= recorder.step("Gather", lowered, predicted, axis=0)
    automate = recorder.step("And", reached, inside, output="automate")
    if policy.shortlist is not None:
        listed = (probabilities >= policy.shortlist.least) | recorder.is_top(probabilities, policy.n_classes)
        # Automated cases have no list: nobody looks at them.
        recorder.step("And", listed, recorder.step("Unsqueeze", ~automate, np.array([1])), output=SHORTLIST)


def _probabilities(recorder: Recorder, contents: Contents, precision: str) -> Symbol:
    """Calibrated probabilities in float64."""
    calibrator = contents.policy.calibrator
    values = recorder.step("Cast", recorder.input(SCORES), to="float64")
    if contents.kind == "probabilities":
        if calibrator is None:
            return values
        values = recorder.log(recorder.maximum(values, _SMALLEST[precision]))
        return recorder.softmax(calibrator.record(recorder, values))
    if calibrator is None:
        return recorder.softmax(values)
    calibrated = calibrator.record(recorder, values)
    if precision == "float32":
        # Calibrated logits have the type of the logits, also in Python.
        calibrated = recorder.step("Cast", recorder.step("Cast", calibrated, to="float32"), to="float64")
    return recorder.softmax(calibrated)


def _outputs(policy: Policy, precision: str) -> dict[str, tuple[str, list[Any]]]:
    """Type and shape of each output by its name."""
    outputs: dict[str, tuple[str, list[Any]]] = {
        "probabilities": ("float32", ["n", policy.n_classes]),
        "predicted": ("int64", ["n"]),
        "automate": ("bool", ["n"]),
        SCORES: (precision, ["n", policy.n_classes]),
    }
    if policy.shortlist is not None:
        outputs[SHORTLIST] = ("bool", ["n", policy.n_classes])
    return outputs


def _type(onnx: Any, name: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)))


def sealed(content: bytes) -> bytes:
    """The bytes of a file with the SHA-256 of all its bytes in place of `EMPTY_SEAL`."""
    start, end = _seal(content, "the file")
    return content[:start] + hashlib.sha256(content).hexdigest().encode() + content[end:]


def _seal(content: bytes, where: str) -> tuple[int, int]:
    found = list(_ENTRY.finditer(content))
    if len(found) != 1:
        raise invalid(where, "be an ONNX file written by this calibrant", "another file", _AGAIN)
    return found[0].span(1)


def read_onnx(path: str | Path) -> bytes:
    """The bytes of an exported file; one that was changed after it was written is refused."""
    source = as_path(path)
    with reading(path):
        content = source.read_bytes()
    start, end = _seal(content, str(path))
    blank = content[:start] + EMPTY_SEAL.encode() + content[end:]
    if hashlib.sha256(blank).hexdigest().encode() != content[start:end]:
        raise invalid(str(path), "be an undamaged file", "one that was changed after it was written", _AGAIN)
    return content


def open_session(content: bytes, where: str) -> Any:
    """Open a model with onnxruntime."""
    runtime = library("onnxruntime", "serve")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # it prints what it raises as well
    # Its threads would keep the cores busy while they wait for the next request.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A file may name others that hold its numbers, which onnxruntime would read. Nothing lies in this folder.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        message = one_line(error, most=200).removesuffix(".")
        raise InvalidInput(f"{where} cannot be run by onnxruntime: {message}.") from error


def open_onnx(path: str | Path) -> tuple[Contents, Score]:
    """What an exported file holds, and its network as a function of arrays."""
    session = open_session(read_onnx(path), str(path))
    text = session.get_modelmeta().custom_metadata_map.get(CONTENTS, "")
    contents = Contents.from_text(text, where=str(path))

    def score(arrays: Arrays) -> NDArray[Any]:
        return np.asarray(session.run([SCORES], arrays)[0])

    return contents, score
