"""One training step (forward, loss, backward, optimiser, scores) and its three modes.

`eager` runs it as written. `compiled` compiles the network, the loss and the preparation of images. `graphed` does
that and then captures the whole step once in a CUDA graph; the learning rate, the loss weights, the sample weights and
the order of samples are tensors that the graph reads at every replay. A last batch of another size does not fit the
captured shapes: it runs as an ordinary step on the same parameters and optimiser state, without a second capture.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.losses import Loss
from calibrant.pruning import ConfidencePruner
from calibrant.training.batches import BatchSource, ResidentBatches, TrainingBatch
from calibrant.training.convolutions import convolutions
from calibrant.training.meter import TrainingMeter
from calibrant.training.sam import SharpnessAware

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.wrappers import _FabricModule

# Number of ordinary steps before the capture: in them cuDNN chooses its kernels, compilation happens and the optimiser
# creates its state, none of which may happen inside a capture.
_WARM_UP = 3


class Learner:
    """The network, its loss and its optimiser, and what one batch does to them."""

    def __init__(
        self,
        fabric: "Fabric",
        model: "_FabricModule",
        loss: Loss,
        optimiser: torch.optim.Optimizer,
        pruner: ConfidencePruner,
        *,
        batch_size: int,
        accumulate: int,
        sam: SharpnessAware | None = None,
    ) -> None:
        self.fabric, self.model, self.optimiser, self.pruner = fabric, model, optimiser, pruner
        self.loss, self.accumulate, self.sam = loss, accumulate, sam
        self.meter = TrainingMeter(fabric.device)
        # What full batches run through; replaced by `compile`.
        self.full_size = batch_size
        self._full_forward: Callable[[Tensor], Tensor] = model
        self._full_terms: Callable[..., dict[str, Tensor]] = loss.terms

    def compile(self) -> None:
        """Compile for full batches. A last batch of another size stays eager: one step is not worth a compilation."""
        self._full_forward = torch.compile(self.model, dynamic=False)
        self._full_terms = torch.compile(self.loss.terms, dynamic=False)

    def learn(self, batch: TrainingBatch) -> None:
        """Train on one batch."""
        with convolutions(len(batch.indices), self.full_size, self.fabric.device):
            self._gradient(batch)
            if self.sam is not None:
                self.sam.climb()
                self._gradient(batch, record=False)
                self.sam.come_back()
        self.optimiser.step()
        self.meter.count_step()

    def _gradient(self, batch: TrainingBatch, *, record: bool = True) -> None:
        """The gradient of the global batch, in pieces where it is accumulated."""
        self.optimiser.zero_grad(set_to_none=True)
        size = len(batch.indices)
        for here, share in self._pieces(size, batch.total):
            # Ranks exchange gradients once, with the last piece.
            with self.fabric.no_backward_sync(self.model, enabled=here.stop < size):
                self._backward(batch[here], share, full=size == self.full_size, record=record)

    def _pieces(self, size: int, total: int) -> list[tuple[slice, float]]:
        """Where this rank's part of a batch of `total` samples is cut, and each piece's share of the global batch.

        Every rank must cut into the same number of pieces, also where one of them holds a sample more.
        """
        if self.accumulate == 1:
            return [(slice(0, size), 1.0)]
        ranks = self.fabric.world_size
        least = total // ranks
        pieces = min(self.accumulate, max(least, 1))
        cuts = [least * piece // pieces for piece in range(pieces)]
        ends = [*(cut * ranks for cut in cuts), total]
        return [
            (slice(start, stop), (ends[number + 1] - ends[number]) / total)
            for number, (start, stop) in enumerate(pairwise([*cuts, size]))
        ]

    def _backward(self, batch: TrainingBatch, share: float, *, full: bool, record: bool) -> None:
        logits = self._full_forward(batch.images) if full else self.model(batch.images)
        terms = self._terms(logits, batch, full=full)
        total = torch.stack(list(terms.values())).sum()
        # A piece counts by its size, so that the gradient of per-sample losses is exactly the whole batch's.
        self.fabric.backward(total if share == 1 else total * share)
        if not record:
            return
        with torch.no_grad():
            if batch.mixed is None:  # else the confidence is that of a mixture, not of any sample
                self.pruner.observe(batch.indices, logits.detach())
            self.meter.update(logits.detach(), batch.targets, terms, total.detach())

    def _terms(self, logits: Tensor, batch: TrainingBatch, *, full: bool) -> dict[str, Tensor]:
        """The parts of the loss; those of a mixed batch are weighted means over both labels of each sample."""
        of, weights = self._full_terms if full else self.loss.terms, self.pruner.weights(batch.indices)
        terms = of(logits, batch.targets, weights)
        if batch.mixed is None:
            return terms
        share, others = batch.mixed.share, of(logits, batch.mixed.partners, weights)
        return {name: share * value + (1 - share) * others[name] for name, value in terms.items()}


class EagerSteps:
    """Runs every batch as an ordinary step; compiled parts are called in the same way."""

    def __init__(self, learner: Learner, source: BatchSource) -> None:
        self.learner, self.source = learner, source

    def run_epoch(self, before_step: Callable[[int], None]) -> None:
        """Train on the epoch's batches."""
        for step, batch in enumerate(self.source.batches()):
            before_step(step)
            self.learner.learn(batch)


class GraphedSteps:
    """Replays one captured step for every full batch; see the module's docstring."""

    def __init__(self, learner: Learner, source: ResidentBatches) -> None:
        self.learner, self.source = learner, source
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warmed = 0
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's

    def run_epoch(self, before_step: Callable[[int], None]) -> None:
        """Train on the epoch's batches."""
        for step, total in enumerate(self.source.tables.totals()):
            before_step(step)
            if total == self.source.batch_size:
                self._full_batch()
            else:
                self._on_side_stream(total)

    def _full_batch(self) -> None:
        if self._warmed < _WARM_UP:
            self._warmed += 1
            self._on_side_stream(self.source.batch_size)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self.learner.learn(self.source.take(self.source.batch_size))
        self._graph.replay()

    def _on_side_stream(self, size: int) -> None:
        # Capture requires warm-up work to run on another stream: nothing may be left pending on the legacy stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.learner.learn(self.source.take(size))
        torch.cuda.current_stream().wait_stream(self._stream)
