"""The operations that calibrators are written in: NumPy computes them, or a `Recorder` writes them down.

A calibrator states its map once, as a function of logits and of these operations. NumPy applies it. A `Recorder` runs
the same function on symbols and keeps the steps, whose names and meanings are those of ONNX, so that an ONNX file or a
torch module can repeat them in float64.
"""

# ruff: noqa: D102 (`NumPyOperations` documents the methods of both classes)

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = NDArray[np.floating[Any]]
# A curve: row 0 holds rising knots or upper edges, row 1 the values there. None leaves a column as it is.
Curves = Sequence[Floats | None]
# A case of the fit set lies on the edge of a step, and the softmax of another library differs in the last digits. Edges
# that are a little higher keep such a case on its side, (lo, hi].
_NUDGE = 1e-12
# One straight piece that changes nothing: where it begins, the value there, the slope.
_IDENTITY = np.array([[0.0], [0.0], [1.0]])


def log_softmax(logits: Matrix) -> Floats:
    """Row-wise log-softmax in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def mean_nll(log_probabilities: Floats, targets: Integers, weights: Floats) -> float:
    """Mean negative log-likelihood of the targets; the weights of the cases have a mean of 1."""
    of_targets = np.take_along_axis(log_probabilities, targets[:, None], axis=1)[:, 0]
    return float(-(weights * of_targets).mean())


class NumPyOperations:
    """Compute at once. Besides these methods, a map may use + - * / and comparisons; x has the shape (n, columns)."""

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    where = staticmethod(np.where)
    product = staticmethod(np.matmul)
    log_softmax = staticmethod(log_softmax)
    # Sum, and largest entry, of each row, shape (n, 1).
    row_sum = staticmethod(partial(np.sum, axis=1, keepdims=True))
    row_max = staticmethod(partial(np.max, axis=1, keepdims=True))
    # log(1 + exp(x)) without overflow.
    softplus = staticmethod(partial(np.logaddexp, 0.0))

    def log_one_minus(self, x: Floats) -> Floats:
        """log(1 - x) of entries of at most 1/2."""
        return np.asarray(np.log1p(-x))

    def is_top(self, x: Floats, columns: int) -> NDArray[np.bool_]:
        """True at the largest entry of each row, the first of equal ones."""
        return np.asarray(np.arange(columns) == x.argmax(axis=1, keepdims=True))

    def columns(self, x: Floats, which: Sequence[int]) -> Floats:
        """Some columns."""
        # NumPy lays picked columns out by columns; sums over rows would then depend on how many rows there are.
        return np.ascontiguousarray(x[:, list(which)])

    def join(self, *parts: Floats) -> Floats:
        """Arrays side by side."""
        return np.concatenate(parts, axis=1)

    def interpolate(self, x: Floats, curves: Curves) -> Floats:
        """Column k by the straight lines of curve k; level before its first knot and after its last."""
        result = x.copy()
        for k, curve in enumerate(curves):
            if curve is not None:
                result[:, k] = np.interp(x[:, k], curve[0], curve[1])
        return result

    def steps(self, x: Floats, curves: Curves) -> Floats:
        """Column k by the steps of curve k, each (lo, hi]."""
        result = x.copy()
        for k, curve in enumerate(curves):
            if curve is not None:
                edges, values = curve
                which = np.searchsorted(edges, np.minimum(x[:, k], 1.0), side="left")
                result[:, k] = values[np.minimum(which, len(values) - 1)]
        return result


NUMPY = NumPyOperations()


# -- recording ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One operation of ONNX: its name, the names of what it reads and writes, and its attributes."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict[str, Any]


def _recorded(operator: str, *, swapped: bool = False) -> Callable[..., "Symbol"]:
    """A method that records an operation of a symbol and what it is combined with."""

    def record(symbol: "Symbol", *others: Any) -> "Symbol":
        operands = (*others, symbol) if swapped else (symbol, *others)
        return symbol.recorder.step(operator, *operands)

    return record


def _operation(operator: str, **attributes: Any) -> Callable[..., "Symbol"]:
    """A method of a recorder that records one operation."""

    def record(recorder: "Recorder", *inputs: Any) -> "Symbol":
        return recorder.step(operator, *inputs, **attributes)

    return record


@dataclass(frozen=True, eq=False)
class Symbol:
    """Stands for an array while a map is recorded. Arithmetic on it adds steps."""

    recorder: "Recorder"
    name: str

    __array_ufunc__ = None  # arrays leave the arithmetic to the symbol

    __add__ = _recorded("Add")
    __sub__ = _recorded("Sub")
    __mul__ = _recorded("Mul")
    __truediv__ = _recorded("Div")
    __radd__ = _recorded("Add", swapped=True)
    __rsub__ = _recorded("Sub", swapped=True)
    __rmul__ = _recorded("Mul", swapped=True)
    __rtruediv__ = _recorded("Div", swapped=True)
    __neg__ = _recorded("Neg")
    __gt__ = _recorded("Greater")
    __lt__ = _recorded("Less")
    __ge__ = _recorded("GreaterOrEqual")
    __le__ = _recorded("LessOrEqual")
    __and__ = _recorded("And")
    __or__ = _recorded("Or")
    __invert__ = _recorded("Not")


@dataclass
class Recorder:
    """Write operations down instead of computing them. See `NumPyOperations`."""

    prefix: str = ""  # begins the name of everything that is recorded
    steps_taken: list[Step] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)  # arrays that the steps read, by name

    def input(self, name: str) -> Symbol:
        """An array that is there when the steps are repeated."""
        return Symbol(self, name)

    def step(self, operator: str, *inputs: Any, output: str | None = None, **attributes: Any) -> Symbol:
        """Record one operation. Numbers and arrays among its inputs become constants."""
        names = tuple(self._name(value) for value in inputs)
        result = Symbol(self, output or f"{self.prefix}step_{len(self.steps_taken)}")
        self.steps_taken.append(Step(operator, names, result.name, attributes))
        return result

    def _name(self, value: Any) -> str:
        if isinstance(value, Symbol):
            return value.name
        array = np.asarray(value)
        for name, known in self.constants.items():
            if known.dtype == array.dtype and np.array_equal(known, array):
                return name
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants[name] = array
        return name

    exp = _operation("Exp")
    log = _operation("Log")
    maximum = _operation("Max")
    minimum = _operation("Min")
    where = _operation("Where")
    join = _operation("Concat", axis=1)

    def log_one_minus(self, x: Symbol) -> Symbol:
        return self.log(1.0 - x)

    def softplus(self, x: Symbol) -> Symbol:
        return self.maximum(x, 0.0) + self.log(1.0 + self.exp(-self.step("Abs", x)))

    def row_sum(self, x: Symbol) -> Symbol:
        return self.step("ReduceSum", x, np.array([1]), keepdims=1)

    def row_max(self, x: Symbol) -> Symbol:
        return self.step("ReduceMax", x, np.array([1]), keepdims=1)

    def is_top(self, x: Symbol, columns: int) -> Symbol:
        return self.step("Equal", self.step("ArgMax", x, axis=1, keepdims=1), np.arange(columns)[None])

    def columns(self, x: Symbol, which: Sequence[int]) -> Symbol:
        return self.step("Gather", x, np.array(which, dtype=np.int64), axis=1)

    def product(self, x: Symbol, matrix: Floats) -> Symbol:
        return self.step("MatMul", x, np.ascontiguousarray(matrix))

    def log_softmax(self, x: Symbol) -> Symbol:
        shifted = x - self.row_max(x)
        return shifted - self.log(self.row_sum(self.exp(shifted)))

    def softmax(self, x: Symbol) -> Symbol:
        """Softmax of each row."""
        powers = self.exp(x - self.row_max(x))
        return powers / self.row_sum(powers)

    def interpolate(self, x: Symbol, curves: Curves) -> Symbol:
        """Straight lines between points, level before the first and after the last."""

        def pieces(knots: Floats, values: Floats) -> Floats:
            width = np.diff(knots)
            slopes = np.divide(np.diff(values), width, out=np.zeros(len(width)), where=width > 0)
            return np.stack([knots, values, np.append(slopes, 0.0)])

        return self._look_up(x, [_IDENTITY if curve is None else pieces(*curve) for curve in curves])

    def steps(self, x: Symbol, curves: Curves) -> Symbol:
        """A value for each bin (lo, hi], given the upper edges."""

        def pieces(edges: Floats, values: Floats) -> Floats:
            starts = np.concatenate([[-1.0], edges[:-1] * (1.0 + _NUDGE)])
            return np.stack([starts, values, np.zeros(len(values))])

        return self._look_up(x, [_IDENTITY if curve is None else pieces(*curve) for curve in curves])

    def _look_up(self, x: Symbol, pieces: Sequence[Floats]) -> Symbol:
        """Column k by the straight pieces of curve k: where a piece begins, the value there, the slope.

        A piece holds what lies above its beginning, up to and including that of the next. It is found by halving.
        """
        rounds = max(int(max(each.shape[1] for each in pieces) - 1).bit_length(), 1)
        length = 2**rounds
        table = np.zeros((3, len(pieces), length))
        table[0] = np.inf  # nothing lies above infinity, so the padding is never found
        for k, each in enumerate(pieces):
            table[:, k, : each.shape[1]] = each
        starts, values, slopes = table.reshape(3, -1)
        x = self.minimum(x, 1.0)
        # Zeros in the shape of x, plus where the table of each column begins.
        place = self.step("Cast", x < -1.0, to="int64") + np.arange(len(pieces))[None] * length
        for level in reversed(range(rounds)):
            further = place + np.array(2**level)
            place = self.where(self.step("Gather", starts, further, axis=0) < x, further, place)
        begin = self.step("Gather", starts, place, axis=0)
        value = self.step("Gather", values, place, axis=0)
        slope = self.step("Gather", slopes, place, axis=0)
        # Below the first beginning a curve is level.
        return value + slope * (self.maximum(x, begin) - begin)


Operations = Any  # `NUMPY` or a `Recorder`, which have the same methods


def log_of_rest(operations: Operations, log_p: Any) -> Any:
    """log(1 - p) of each entry of rows of log-probabilities, exact also if p rounds to 1.

    At most one entry of a row is above 1/2. For that one the others are summed instead.
    """
    p = operations.exp(log_p)
    large = log_p > np.log(0.5)
    others = operations.row_sum(operations.where(large, 0.0, p))
    # The smallest normal number stands for "none", so that the logarithm stays finite.
    of_large = operations.log(operations.maximum(others, np.finfo(np.float64).tiny))
    return operations.where(large, of_large, operations.log_one_minus(operations.minimum(p, 0.5)))
