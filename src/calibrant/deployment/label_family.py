"""Several labels per case in use: an ONNX file that decides, and the monitor."""

import json
from pathlib import Path

import numpy as np

from calibrant.checks import fraction
from calibrant.decisions.multilabel import LabelCases, MultiLabel
from calibrant.deployment.monitor_stream import Stream
from calibrant.deployment.onnx_file import library
from calibrant.deployment.watch import Watched, watch
from calibrant.errors import invalid
from calibrant.files import as_path, atomic_write


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


def watch_labels(rules: MultiLabel, cases: LabelCases, *, level: float = 0.05) -> dict[str, Watched]:
    """Watch every label that something is promised for; see `watch`.

    While all promises hold, the probability that any label ever raises an alarm is at most `level`.

    Args:
        rules: What decides.
        cases: Labelled cases in the order in which they came.
        level: Probability of a false alarm; the labels have equal parts.
    """
    fraction("level", level)
    rules.refuse_other_labels(cases)
    promised = rules.promised
    watched = {}
    for label, policy in promised.items():
        watched[label] = watch(Stream.of_predictions(policy, cases[label]), level=level / len(promised))
    return watched
