"""What all meters share: checks, batches that wait, and states that cannot be read while some do."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from calibrant.checks import labels, require_tensor
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.pending import Pending, Waiting
from calibrant.predictions import (
    SUM_TOLERANCE,
    Kind,
    Precision,
    Rows,
    as_targets,
    check_rows,
    check_tops,
    probabilities_of,
)

_PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class HostBatch:
    """A batch on the CPU, read by the code that reads `Predictions`."""

    scores: NDArray[Any]
    targets: NDArray[Any]
    kind: Kind
    precision: Precision

    @classmethod
    def read(cls, scores: Tensor, targets: Tensor, kind: Kind) -> Self:
        """The values of tensors; labels are checked."""
        precision = _PRECISIONS[scores.dtype]
        values = (scores.float() if scores.dtype == torch.bfloat16 else scores).numpy()
        return cls(values, as_targets(targets, *scores.shape), kind, precision)

    @cached_property
    def rows(self) -> Rows:
        """What `Predictions` keeps of each row; the scores are checked."""
        return check_rows(self.scores, self.targets, self.kind, self.precision)

    @cached_property
    def confidence(self) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Confidence and correctness of each row; the scores are checked."""
        confidence, predicted = check_tops(self.scores, self.targets, self.kind, self.precision)
        return confidence, predicted == self.targets

    @property
    def edge_precision(self) -> Precision:
        """Precision of the confidences."""
        return self.precision if self.kind == "probabilities" else "float64"

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """All of them, float64, shape (n, K)."""
        _ = self.rows  # checked first
        return probabilities_of(self.scores, self.kind)


class State:
    """A sum that a meter keeps. Whoever reads or replaces it first makes the meter add what waits.

    Everybody reads states as attributes: `compute`, `forward`, `reset`, `sync`, `merge_state`, `state_dict`, `to`,
    compute groups of a `MetricCollection`. So nobody can see a stale one.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, meter: None, owner: type) -> Self: ...

    @overload
    def __get__(self, meter: "Meter", owner: type) -> Tensor: ...

    def __get__(self, meter: "Meter | None", owner: type) -> Self | Tensor:
        if meter is None:
            return self
        meter.flush()
        value: Tensor = meter.__dict__[self.name]
        return value

    def __set__(self, meter: "Meter", value: Tensor) -> None:
        meter.flush()
        meter.__dict__[self.name] = value


class Meter(Metric):
    """What all meters share: the kind of scores, the rules, and the count of rows that broke them.

    Args:
        kind: What `update` is given: "logits" or "probabilities". It is never guessed.
        kwargs: For torchmetrics, such as `process_group` or `sync_on_compute`.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    refused = State()
    _tops_only = False  # whether the meter asks for `HostBatch.confidence` and for nothing else

    def __init__(self, *, kind: Kind, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if kind not in ("logits", "probabilities"):
            raise invalid("kind", "be 'logits' or 'probabilities'", repr(kind))
        self.kind = kind
        self._pending = Pending(kind, tops_only=self._tops_only)
        self._add("refused", dtype=torch.int64)

    def _add(self, name: str, *shape: int, dtype: torch.dtype) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _set_apart(self, what: str) -> None:
        """Keep a `MetricCollection` from taking this meter for another one.

        It lets meters share states whose names agree and whose values agree after the first batch: two thresholds
        that no row has reached yet would be one for ever. So one more state, always 0, has a name that differs.
        """
        self._add(re.sub(r"\W", "_", what), dtype=torch.int64)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch.

        Args:
            scores: Shape (n, K), of the kind that the constructor names.
            targets: Shape (n,), integers in 0..K-1.
        """
        check_form(scores, targets, self.kind)
        scores = scores.detach()
        if scores.device.type == "cpu":
            self._add_host(HostBatch.read(scores, targets, self.kind))
        else:
            self.refused += bad_rows(scores, targets, self.kind).sum()
            self._add_device(scores, targets)

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """Let small batches wait before torchmetrics' own wrapper, which costs as much as keeping them."""
        direct = super()._wrap_update(update)

        @wraps(update)
        def wrapped(scores: Tensor, targets: Tensor) -> None:
            if self._wait(scores, targets):
                # As torchmetrics does, but without the look-ups of `Module.__setattr__`.
                self.__dict__["_computed"] = None
                self.__dict__["_update_count"] += 1
            else:
                direct(scores, targets)

        return wrapped

    def _wait(self, scores: Tensor, targets: Tensor) -> bool:
        # The first batch is read on the spot, in full: a wrong kind of scores is wrong from the start.
        if self._update_count == 0 or self._device != _CPU:
            return False
        if self._pending.take(scores, targets):
            return True
        self.flush()
        return self._pending.take(scores, targets)

    def flush(self) -> None:
        """Add the batches that wait. Nobody needs to call it: reading a state does."""
        if self._pending.rows == 0:
            return
        waiting = self._pending.drain()
        try:
            self._add_host(HostBatch(waiting.scores, waiting.targets, self.kind, waiting.precision))
        except InvalidInput:
            self._add_one_by_one(waiting)

    def _add_one_by_one(self, waiting: Waiting) -> None:
        """Add the good batches, as if each had been read on arrival, and refuse the first bad one."""
        refusal = None
        for scores, targets in zip(
            np.split(waiting.scores, waiting.cuts), np.split(waiting.targets, waiting.cuts), strict=True
        ):
            try:
                self._add_host(HostBatch(scores, targets, self.kind, waiting.precision))
            except InvalidInput as error:
                refusal = refusal or error
        raise InvalidInput(f"{refusal} The row came in an earlier update; its batch is left out.") from refusal

    def reset(self) -> None:
        """Forget everything seen, and what waits."""
        self._pending.drop()
        super().reset()

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Go where the network goes, but count on in int64 and float64 when it is cast.

        torchmetrics sees to that for `half()` and the like, but not for `to(dtype)`, which Lightning's bf16-true calls.
        """

        def moved(value: Tensor) -> Tensor:
            result = fn(value)
            return result if result.dtype == value.dtype else value.to(result.device)

        super()._apply(moved, exclude_state)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: what waits is added first, the buffer stays behind."""
        self.flush()
        return super().__getstate__() | {"_pending": self._pending.empty()}

    def compute(self) -> Tensor:
        """The metric over everything seen, a float64 scalar; NaN before the first row."""
        if self.refused > 0:
            rules = "finite scores, probabilities that sum to 1, labels in 0..K-1"
            raise InvalidInput(f"{self.kind} must obey the rules ({rules}), got {int(self.refused)} rows that do not.")
        return self._result()

    def _add_host(self, batch: HostBatch) -> None:
        raise NotImplementedError

    def _add_device(self, scores: Tensor, targets: Tensor) -> None:
        raise NotImplementedError

    def _result(self) -> Tensor:
        raise NotImplementedError


def check_form(scores: Tensor, targets: Tensor, kind: Kind) -> None:
    """Shapes and types: known without waiting for the device."""
    require_tensor(kind, scores)
    require_tensor("targets", targets)
    if scores.ndim != 2 or len(scores) == 0 or scores.shape[1] < 2:
        rule = "have shape (n, K) with at least one row and two classes"
        raise invalid(kind, rule, f"shape {tuple(scores.shape)}", _as_rows(scores.shape, targets.shape, kind))
    if scores.dtype not in _PRECISIONS:
        raise invalid(kind, "hold floating-point numbers", f"dtype {scores.dtype}")
    labels("targets", targets, rows=len(scores))


def _as_rows(scores: torch.Size, targets: torch.Size, kind: Kind) -> str:
    """How to get one row a prediction from scores of another shape; empty where it cannot be told."""
    if scores in (targets, (*targets, 1)) and len(targets) == 1:
        first = "1 - p, p" if kind == "probabilities" else "torch.zeros_like(z), z"
        return f"Of two classes give both: torch.stack([{first}], dim=1), each of shape (n,)."
    if len(scores) < 3:
        return ""
    if targets == (scores[0], *scores[2:]):
        return f"One row a pixel: {kind}.movedim(1, -1).flatten(0, -2) and targets.flatten()."
    return f"One row a position: {kind}.flatten(0, -2) and targets.flatten()." if targets == scores[:-1] else ""


def bad_rows(scores: Tensor, targets: Tensor, kind: Kind) -> Tensor:
    """Which rows break a rule, on the device."""
    total = scores.sum(dim=1, dtype=torch.float64)
    if kind == "logits":
        fine = torch.isfinite(total)
    else:
        fine = ((total - 1.0).abs() <= SUM_TOLERANCE[_PRECISIONS[scores.dtype]]) & (scores.amin(dim=1) >= 0)
    return ~fine | (targets < 0) | (targets >= scores.shape[1])
