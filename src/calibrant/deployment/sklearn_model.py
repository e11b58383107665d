"""scikit-learn classifiers as ONNX files that decide: skl2onnx converts the estimator, the rest is as for networks."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.decisions import PolicyLike
from calibrant.deployment.contents import Contents
from calibrant.deployment.decider import Decider, policy_for
from calibrant.deployment.inputs import INPUTS, Arrays, InputSpec, read_specs
from calibrant.deployment.module import Head, inside_of
from calibrant.deployment.onnx_file import OUTPUTS, SCORES, SHORTLIST, library, open_session
from calibrant.errors import InvalidInput, invalid

# The newest that torch's exporter writes by itself; both halves of the file must have the same.
OPSET = 18
_PREFIX = "estimator_"


class Tail(nn.Module):
    """From an estimator's probabilities, and its inputs for their ranges, to decisions."""

    def __init__(self, head: Head, spec: InputSpec) -> None:
        super().__init__()
        self.head, self.spec = head, spec

    def forward(self, scores: Tensor, inputs: Tensor) -> tuple[Tensor, ...]:
        """Probabilities, predicted, automate, and the shortlist where there is one."""
        probabilities, predicted, automate, *listed = self.head(scores)
        automate = automate & inside_of(self.spec, inputs)
        return probabilities, predicted, automate, *(each & ~automate[:, None] for each in listed)


def export_estimator(
    estimator: Any,
    path: Path,
    policy: PolicyLike | None,
    example: Any,
    *,
    ranges: Mapping[str, tuple[float, float]] | None,
    class_names: Sequence[str] | None,
) -> Any:
    """Write a fitted classifier with calibrator, rule and shortlist; its input is called `inputs`.

    Args:
        estimator: With `predict_proba` and `classes_`; pipelines too.
        path: Where to write.
        policy: A policy or its file; None for none.
        example: Real rows, shape (n, features).
        ranges: Of `inputs`, where they are known.
        class_names: By default the estimator's classes as text.
    """
    from calibrant.deployment.onnx import Exported, trace, write_checked

    if not callable(getattr(estimator, "predict_proba", None)) or not hasattr(estimator, "classes_"):
        rule = "be a run, a torch.nn.Module or a fitted scikit-learn classifier with predict_proba"
        raise invalid("model", rule, type(estimator).__name__)
    rows = np.asarray(example)
    if rows.ndim != 2 or len(rows) < 2 or rows.dtype.kind not in "iuf":
        raise invalid("example", "be numbers of shape (n, features), n >= 2", f"{rows.dtype} {rows.shape}")
    proto, dtype, raw = _convert(estimator, rows)
    (spec,) = read_specs({INPUTS: torch.from_numpy(rows.astype(dtype))}, ranges)
    names = tuple(map(str, estimator.classes_)) if class_names is None else tuple(class_names)
    own = policy_for(len(estimator.classes_), policy, names)
    contents = Contents(
        inputs=(spec,),
        network=hashlib.sha256(proto.graph.SerializeToString(deterministic=True)).hexdigest(),
        kind="probabilities",
        policy=own,
    )
    smallest = 1e-45 if raw.dtype == np.float32 else 5e-324
    head = Head(own, kind="probabilities", smallest=smallest)
    outputs = [*OUTPUTS, *([] if own.shortlist is None else [SHORTLIST])]
    tensors = [torch.from_numpy(raw), torch.from_numpy(rows[:2].astype(dtype))]
    tail = trace(Tail(head, spec).eval(), tensors, ["estimator_scores", INPUTS], outputs, opset=OPSET, packed=False)
    joined = _join(proto, tail)
    decider = Decider.of(contents, _scores(estimator))
    written: Exported = write_checked(joined, path, decider, {INPUTS: rows.astype(dtype)})
    return written


def _scores(estimator: Any) -> Any:
    def score(arrays: Arrays) -> NDArray[Any]:
        with warnings.catch_warnings():
            # An estimator that was fitted on a table with named columns says that an array has none.
            warnings.simplefilter("ignore")
            return np.asarray(estimator.predict_proba(arrays[INPUTS]))

    return score


def _convert(estimator: Any, rows: NDArray[Any]) -> tuple[Any, str, NDArray[Any]]:
    """The estimator as ONNX, the type of its inputs, and its probabilities of the first two rows.

    In double precision where the converter and the runtime can do it: linear models then equal scikit-learn's to the
    last digits. Trees can be had in single precision alone.
    """
    skl2onnx = library("skl2onnx", "sklearn-export")
    types = library("skl2onnx.common.data_types", "sklearn-export")
    told = ""
    for dtype, kind in (("float64", types.DoubleTensorType), ("float32", types.FloatTensorType)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                proto = skl2onnx.to_onnx(
                    estimator,
                    initial_types=[(INPUTS, kind([None, rows.shape[1]]))],
                    options={"zipmap": False},
                    target_opset={"": OPSET, "ai.onnx.ml": 3},
                )
            session = open_session(proto.SerializeToString(), "the estimator")
            output = session.get_outputs()[1].name
            return proto, dtype, np.asarray(session.run([output], {INPUTS: rows[:2].astype(dtype)})[0])
        except Exception as error:  # noqa: BLE001 (the other type may do; what is said last is shown)
            told = " ".join(str(error).split())[:200]
    raise InvalidInput(f"skl2onnx cannot convert {type(estimator).__name__}: {told}")


def _join(estimator: Any, tail: Any) -> Any:
    """One model of two: the estimator's probabilities become the tail's scores."""
    onnx = library("onnx")
    first = onnx.compose.add_prefix_graph(estimator.graph, _PREFIX, rename_inputs=False)
    made = first.output[1].name
    for node in tail.graph.node:
        for at, name in enumerate(node.input):
            if name == "estimator_scores":
                node.input[at] = made
    passed = onnx.helper.make_node("Identity", [made], [SCORES], name="scores")
    scores = onnx.helper.make_tensor_value_info(SCORES, first.output[1].type.tensor_type.elem_type, ["n", None])
    graph = onnx.helper.make_graph(
        [*first.node, passed, *tail.graph.node],
        "calibrant",
        [each for each in first.input if each.name == INPUTS],
        [*tail.graph.output, scores],
        initializer=[*first.initializer, *tail.graph.initializer],
    )
    versions = {each.domain: each.version for each in estimator.opset_import} | {"": OPSET}
    versions |= {each.domain: each.version for each in tail.opset_import}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    ir_version = max(estimator.ir_version, tail.ir_version)
    return onnx.helper.make_model(graph, opset_imports=imports, functions=list(tail.functions), ir_version=ir_version)
