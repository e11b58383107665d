"""Export scikit-learn classifiers: skl2onnx converts the estimator, the policy follows it. No torch is needed."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import PolicyLike
from calibrant.deployment.contents import Contents
from calibrant.deployment.decider import Decider, policy_for
from calibrant.deployment.graph import deployable
from calibrant.deployment.inputs import INPUTS, Arrays, read_specs
from calibrant.deployment.onnx_file import library, open_session
from calibrant.errors import InvalidInput, invalid

# The oldest that has every operator of the policy.
OPSET = 18


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
        ranges: Smallest and largest number of `inputs`, if they are known.
        class_names: By default the estimator's classes as text.
    """
    from calibrant.deployment.onnx import Exported, write_checked

    if not callable(getattr(estimator, "predict_proba", None)) or not hasattr(estimator, "classes_"):
        rule = "be a run, a torch.nn.Module or a fitted scikit-learn classifier with predict_proba"
        raise invalid("model", rule, type(estimator).__name__)
    rows = np.asarray(example)
    if rows.ndim != 2 or len(rows) < 2 or rows.dtype.kind not in "iuf":
        raise invalid("example", "be numbers of shape (n, features), n >= 2", f"{rows.dtype} {rows.shape}")
    proto, dtype = _convert(estimator, rows)
    (spec,) = read_specs({INPUTS: rows.astype(dtype)}, ranges)
    names = tuple(map(str, class_names or estimator.classes_))
    own = policy_for(len(estimator.classes_), policy, names)
    contents = Contents(
        inputs=(spec,),
        network=hashlib.sha256(proto.graph.SerializeToString(deterministic=True)).hexdigest(),
        kind="probabilities",
        policy=own,
    )
    decider = Decider.of(contents, _scores(estimator))
    written: Exported = write_checked(
        deployable(proto, contents, output=1), path, decider, {INPUTS: rows.astype(dtype)}
    )
    return written


def _scores(estimator: Any) -> Any:
    def score(arrays: Arrays) -> NDArray[Any]:
        with warnings.catch_warnings():
            # An estimator that was fitted on a table with named columns warns that an array has none.
            warnings.simplefilter("ignore")
            return np.asarray(estimator.predict_proba(arrays[INPUTS]))

    return score


def _convert(estimator: Any, rows: NDArray[Any]) -> tuple[Any, str]:
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
                    target_opset={"": OPSET, "ai.onnx.ml": 3},
                )
            session = open_session(proto.SerializeToString(), "the estimator")
            output = session.get_outputs()[1].name
            session.run([output], {INPUTS: rows[:2].astype(dtype)})
        except Exception as error:  # noqa: BLE001 (the other type may work; the last message is shown)
            message = " ".join(str(error).split())[:200]
        else:
            return proto, dtype
    raise InvalidInput(f"skl2onnx cannot convert {type(estimator).__name__}: {message}")
