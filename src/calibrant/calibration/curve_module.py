"""Isotonic regression and histogram binning as torch modules: curves of straight pieces, looked up by halving."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from calibrant.calibration._arrays import Floats
from calibrant.calibration.module import CalibrationModule

# A case of the fit set lies on a step's edge, and other libraries' softmax differs in the last digits. Edges that are a
# little higher keep such a case on its side, (lo, hi].
_NUDGE = 1e-12


class CurveModule(CalibrationModule):
    """Bends each class's probability by its own curve, or the top probability by a common one.

    Args:
        pieces: One array (3, m) for each curve: where a piece begins, the value there, the slope. Beginnings rise; a
            piece holds what lies above its beginning, up to and including that of the next.
        n_classes: Number of classes.
        prior_weight: Share of the uniform distribution that is mixed in.
        top_label: Whether the one curve is that of the top probability.
    """

    starts: Tensor
    values: Tensor
    slopes: Tensor
    offsets: Tensor
    prior_weight: Tensor

    def __init__(self, pieces: list[Floats], *, n_classes: int, prior_weight: float, top_label: bool) -> None:
        super().__init__()
        longest = max(each.shape[1] for each in pieces)
        self.rounds = max(int(longest - 1).bit_length(), 1)
        self.room = 2**self.rounds
        # Nothing lies above infinity, so what is filled up is never found.
        filled = [np.pad(each, ((0, 0), (0, self.room - each.shape[1]))) for each in pieces]
        for full, each in zip(filled, pieces, strict=True):
            full[0, each.shape[1] :] = np.inf
        starts, values, slopes = np.stack(filled, axis=1)
        for name, array in (("starts", starts), ("values", values), ("slopes", slopes)):
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(array)).reshape(-1))
        self.register_buffer("offsets", torch.arange(len(pieces)) * self.room)
        # A tensor, because the ONNX exporter writes Python's numbers as float32.
        self.register_buffer("prior_weight", torch.tensor(prior_weight, dtype=torch.float64))
        self.n_classes, self.top_label = n_classes, top_label

    def _scores(self, logits: Tensor) -> Tensor:
        p = functional.log_softmax(logits, dim=1).exp()
        q = self._of_top(p) if self.top_label else self._of_each(p)
        return torch.log((1.0 - self.prior_weight) * q + self.prior_weight / self.n_classes)

    def _bend(self, p: Tensor) -> Tensor:
        """Apply curve k to column k."""
        p = p.clamp(max=1.0)
        at = torch.zeros_like(p, dtype=torch.int64) + self.offsets
        step = self.room
        for _ in range(self.rounds):
            step = step // 2
            further = self._pick(self.starts, at + step) < p
            at = torch.where(further, at + step, at)
        begin = self._pick(self.starts, at)
        # Below the first beginning a curve is level.
        return self._pick(self.values, at) + self._pick(self.slopes, at) * (torch.maximum(p, begin) - begin)

    def _pick(self, table: Tensor, at: Tensor) -> Tensor:
        return table.index_select(0, at.reshape(-1)).reshape(at.shape)

    def _of_each(self, p: Tensor) -> Tensor:
        if self.n_classes == 2:
            one = self._bend(p[:, 1:])
            return torch.cat([1.0 - one, one], dim=1)
        q = self._bend(p)
        # Where every curve says 0 there is nothing to share out: such a row stays as it came.
        q = torch.where(q.sum(dim=1, keepdim=True) > 0, q, p)
        return q / q.sum(dim=1, keepdim=True)

    def _of_top(self, p: Tensor) -> Tensor:
        top = p.argmax(dim=1, keepdim=True)
        is_top = torch.arange(self.n_classes, device=p.device) == top
        rest = torch.where(is_top, torch.zeros_like(p), p)
        mass = rest.sum(dim=1, keepdim=True)
        even = torch.full_like(p, 1.0 / (self.n_classes - 1))
        share = torch.where(mass > 0, rest / torch.where(mass > 0, mass, torch.ones_like(mass)), even)
        share = torch.where(is_top, torch.zeros_like(p), share)
        runner_up = share.amax(dim=1, keepdim=True)
        bent = torch.maximum(self._bend(p.gather(1, top)), runner_up / (1.0 + runner_up) + 1e-6)
        return torch.where(is_top, bent, share * (1.0 - bent))


def identity_pieces() -> Floats:
    """The curve that changes nothing."""
    return np.array([[0.0], [0.0], [1.0]])


def linear_pieces(knots: Floats, values: Floats) -> Floats:
    """Straight lines between points, level before the first and after the last."""
    rise, width = np.diff(values), np.diff(knots)
    slopes = np.append(np.where(width > 0, rise / np.where(width > 0, width, 1.0), 0.0), 0.0)
    return np.stack([knots, values, slopes])


def level_pieces(edges: Floats, values: Floats) -> Floats:
    """Steps: a value for each bin (lo, hi], given the upper edges."""
    starts = np.concatenate([[-1.0], edges[:-1] * (1.0 + _NUDGE)])
    return np.stack([starts, values, np.zeros(len(values))])
