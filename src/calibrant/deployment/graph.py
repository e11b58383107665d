"""The ONNX graph of a deployed model: its own graph, and after it the policy, built from fitted parameters.

Everything after the scores is computed in float64, as `Policy.probabilities` and `RoutingRule.decide` compute it.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration.operations import Recorder, Step, Symbol
from calibrant.decisions import Policy
from calibrant.deployment.contents import Contents
from calibrant.deployment.inputs import InputSpec
from calibrant.deployment.onnx_file import OUTPUTS, SCORES, SHORTLIST, library

Floats = NDArray[np.float64]
# A threshold is the confidence of a case, or of many if the calibrator has level stretches. The softmax of another
# library differs in the last digits: a threshold that is a little lower keeps such cases on their side.
_NUDGE = 1e-12
# What stands for a probability of 0 if its logarithm is needed; see `logits_of`.
_SMALLEST = {"float32": 1e-45, "float64": 5e-324}
_MODEL, _POLICY = "model_", "policy_"


def deployable(model: Any, contents: Contents, *, output: int = 0) -> Any:
    """Join a model's ONNX graph with its policy: raw inputs in, decisions out.

    A case with a number outside the range of its input (images from 0 to 255 by mistake, NaN) is never automated: no
    promise was made for it, and networks are confident about anything.

    Args:
        model: The ONNX model of the network or estimator alone. Its inputs have the names in `contents`.
        contents: The inputs, the policy, and what the scores are.
        output: Which of its outputs holds the scores.
    """
    onnx = library("onnx")
    helper = onnx.helper
    network = onnx.compose.add_prefix(model, _MODEL).graph
    scores = network.output[output]
    precision = _type_name(onnx, scores.type.tensor_type.elem_type)
    recorder = Recorder(prefix=_POLICY)
    inside = _prepare_inputs(recorder, contents.inputs)
    prepared = len(recorder.steps_taken)
    recorder.step("Identity", recorder.input(scores.name), output=SCORES)
    _decide(recorder, contents, precision, inside)
    nodes = [_node(onnx, step) for step in recorder.steps_taken]
    graph = helper.make_graph(
        [*nodes[:prepared], *network.node, *nodes[prepared:]],
        "calibrant",
        [helper.make_tensor_value_info(s.name, _type(onnx, s.dtype), ["n", *s.shape]) for s in contents.inputs],
        _outputs(onnx, contents.policy, precision),
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
    names = [*OUTPUTS, SCORES]
    if policy.shortlist is not None:
        names.append(SHORTLIST)
    return names


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
    top = recorder.step("ReduceMax", probabilities, np.array([1]), keepdims=0)
    thresholds = recorder.step("Gather", _lowered(policy.routing.thresholds), predicted, axis=0)
    # Rounded probabilities may be a little more than 1.
    reached = recorder.minimum(top, 1.0) >= thresholds
    automate = recorder.step("And", reached, inside, output="automate")
    if policy.shortlist is not None:
        listed = (probabilities >= policy.shortlist.least) | recorder.is_top(probabilities, policy.n_classes)
        # Automated cases have no list: nobody looks at them.
        recorder.step("And", listed, recorder.step("Unsqueeze", ~automate, np.array([1])), output=SHORTLIST)


def _lowered(thresholds: Floats) -> Floats:
    """Thresholds a little lower, but never by more than half of what is left above them.

    Confidences of a saturated model lie within 1e-12 of 1. A rule that automates only a confidence of 1 was not shown
    to be right for those just below.
    """
    # Infinity stands for a class that is never automated, and stays.
    left = np.maximum(1.0 - thresholds, 0.0) / 2.0
    return np.asarray(thresholds - np.minimum(_NUDGE, left))


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


def _outputs(onnx: Any, policy: Policy, precision: str) -> list[Any]:
    shapes: dict[str, tuple[str, list[Any]]] = {
        "probabilities": ("float32", ["n", policy.n_classes]),
        "predicted": ("int64", ["n"]),
        "automate": ("bool", ["n"]),
        SCORES: (precision, ["n", policy.n_classes]),
        SHORTLIST: ("bool", ["n", policy.n_classes]),
    }
    infos = []
    for name in output_names(policy):
        dtype, shape = shapes[name]
        infos.append(onnx.helper.make_tensor_value_info(name, _type(onnx, dtype), shape))
    return infos


def _node(onnx: Any, step: Step) -> Any:
    attributes = dict(step.attributes)
    if "to" in attributes:
        attributes["to"] = _type(onnx, attributes["to"])
    return onnx.helper.make_node(step.operator, step.inputs, [step.output], name=step.output, **attributes)


def _type(onnx: Any, name: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)))


def _type_name(onnx: Any, code: int) -> str:
    return str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)))
