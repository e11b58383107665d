"""One training step (forward, loss, backward, optimiser, scores), its three modes, and passes without training.

`eager` runs it as written. `compiled` compiles the network, the loss and the preparation of images. `graphed` does
that and then captures the whole step once in a CUDA graph; the learning rate, the loss weights, the sample weights and
the order of samples are tensors that the graph reads at every replay. A last batch of another size does not fit the
captured shapes: it runs as an ordinary step on the same parameters and optimiser state, without a second capture.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid
from calibrant.integrations.on_device import accumulate_bins
from calibrant.losses import Loss
from calibrant.losses.distributed import global_sum
from calibrant.pruning import ConfidencePruner
from calibrant.pruning.pruner import Scorer
from calibrant.training.batches import Batches, TrainingBatch
from calibrant.training.data import draw_augmentation
from calibrant.training.network import convolutions, padded
from calibrant.training.reproducibility import derive_seed, seeded

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.wrappers import _FabricModule

    from calibrant.training.setup import Setup

_BINS = DEFAULT_N_BINS
_NEVER = -1


class TrainingMeter:
    """Accuracy, calibration error and loss terms over the epoch's batches, in float64.

    It uses only in-place tensor operations with fixed shapes, so that a captured step can contain it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Samples, confidence and correct ones in each bin; float64 counts exactly up to 2^53.
        self.bins = torch.zeros(3, _BINS, dtype=torch.float64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.full((), _NEVER, dtype=torch.int64, device=device)
        self.terms: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Begin an epoch."""
        for total in (self.bins, self.steps, *self.terms.values()):
            total.zero_()
        self.first_bad.fill_(_NEVER)

    def update(self, logits: Tensor, targets: Tensor, terms: dict[str, Tensor], total: Tensor) -> None:
        """Add one batch."""
        confidence, predicted = torch.softmax(logits.float(), dim=1).max(dim=1)
        self.bins += torch.stack([total.double() for total in accumulate_bins(confidence, predicted == targets, _BINS)])
        for name, value in terms.items():
            if name not in self.terms:
                self.terms[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            # A loss term is already that of the global batch; weighting by the local size makes the mean exact.
            self.terms[name] += value.detach().double() * len(targets)
        bad = ~torch.isfinite(total)
        self.first_bad.copy_(torch.where(bad & (self.first_bad == _NEVER), self.steps, self.first_bad))

    def read(self) -> dict[str, Any]:
        """The epoch's figures over all ranks (waits for the device)."""
        totals = global_sum(torch.cat([self.bins.view(-1), *(value.view(1) for value in self.terms.values())])).cpu()
        counts, confidence, correct = totals[: 3 * _BINS].view(3, _BINS)
        samples = float(counts.sum())
        terms = {name: float(v) / samples for name, v in zip(self.terms, totals[3 * _BINS :], strict=True)}
        return {
            "samples": int(samples),
            "loss": sum(terms.values()),
            "terms": terms,
            "accuracy": float(correct.sum()) / samples,
            "confidence": float(confidence.sum()) / samples,
            "ece": float((confidence - correct).abs().sum() / samples),
        }

    def first_bad_step(self) -> int | None:
        """Number of the first step of the epoch with a non-finite loss, or None."""
        step = int(self.first_bad)
        return None if step == _NEVER else step


# Number of ordinary steps before the capture: in them cuDNN chooses its kernels, compilation happens and the optimiser
# creates its state, none of which may happen inside a capture.
_WARM_UP = 3


class Steps:
    """Trains the network on one batch after the other."""

    def __init__(
        self,
        fabric: "Fabric",
        model: "_FabricModule",
        loss: Loss,
        optimiser: torch.optim.Optimizer,
        source: Batches,
    ) -> None:
        self.fabric, self.model, self.loss, self.optimiser, self.source = fabric, model, loss, optimiser, source
        self.pruner: ConfidencePruner = source.tables.pruner
        self.meter = TrainingMeter(fabric.device)
        # What full batches run through; replaced by `compile`.
        self._full_forward: Callable[[Tensor], Tensor] = model
        self._full_terms: Callable[..., dict[str, Tensor]] = loss.terms

    def compile(self) -> None:
        """Compile for full batches. A last batch of another size stays eager: one step is not worth a compilation."""
        self._full_forward = torch.compile(self.model, dynamic=False)
        self._full_terms = torch.compile(self.loss.terms, dynamic=False)
        self.source.preparation.compile(self.source.batch_size)

    def run_epoch(self, before_step: Callable[[int], None]) -> None:
        """Train on the epoch's batches."""
        for step, total in enumerate(self.source.tables.totals()):
            before_step(step)
            self._advance(total)

    def _advance(self, total: int) -> None:
        self.learn(self.source.take(total))

    def learn(self, batch: TrainingBatch) -> None:
        """Train on one batch."""
        forward: Callable[[Tensor], Tensor] = self.model
        terms_of: Callable[..., dict[str, Tensor]] = self.loss.terms
        full_size = self.source.batch_size
        if len(batch.indices) == full_size:
            forward, terms_of = self._full_forward, self._full_terms
        with convolutions(len(batch.indices), full_size, self.fabric.device):
            self.optimiser.zero_grad(set_to_none=True)
            try:
                logits = forward(batch.images)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                rule = "leave no epoch with a last batch of one sample, which batch normalisation cannot take"
                raise invalid("optimiser.batch_size", rule, full_size, "Choose another size.") from error
            terms = terms_of(logits, batch.targets, self.pruner.weights(batch.indices))
            total = torch.stack(list(terms.values())).sum()
            self.fabric.backward(total)
            with torch.no_grad():
                self.pruner.observe(batch.indices, logits.detach())
                self.meter.update(logits.detach(), batch.targets, terms, total.detach())
        self.optimiser.step()
        self.meter.steps += 1


class GraphedSteps(Steps):
    """Replays one captured step for every full batch; see the module's docstring."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warmed = 0
        self._size = self.source.preparation.size
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's

    def run_epoch(self, before_step: Callable[[int], None]) -> None:
        """Train on the epoch's batches. Images of another size than before need a new graph."""
        if self._size != self.source.preparation.size:
            self._size, self._graph, self._warmed = self.source.preparation.size, None, 0
        super().run_epoch(before_step)

    def _advance(self, total: int) -> None:
        if total != self.source.batch_size:
            self._on_side_stream(total)
        elif self._warmed < _WARM_UP:
            self._warmed += 1
            self._on_side_stream(total)
        else:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph):
                    self.learn(self.source.take(total))
            self._graph.replay()

    def _on_side_stream(self, total: int) -> None:
        # Capture requires warm-up work to run on another stream: nothing may be left pending on the legacy stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.learn(self.source.take(total))
        torch.cuda.current_stream().wait_stream(self._stream)


# forward passes without training: logits of held-out images, and scores of samples for pruning ------------------------


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode inside the block."""
    before = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(before)


@torch.no_grad()
def predict(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    prepare: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Logits and labels of images in batches, on the CPU.

    Mixed precision is for training only: a logit of 10 in bfloat16 is uncertain by 0.03, enough to move a confidence
    across a threshold. For the same reason convolutions on a GPU must not round to TF32 here, as they do by default.
    """
    logits, labels = [], []
    exact = torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False)
    with evaluating(network), exact:
        for images, targets in batches:
            output = network(prepare(images.to(device, non_blocking=True)))
            logits.append(output.to(torch.promote_types(output.dtype, torch.float32)).cpu())
            labels.append(targets)
    return torch.cat(logits), torch.cat(labels)


# A pass without gradients keeps no activations, so that much larger batches fit than in training; a GPU would otherwise
# wait for the host, which starts each layer of each small batch one by one.
_LARGER = 8


def scorer(setup: "Setup", epoch: int) -> Scorer:
    """How samples are scored after `epoch`.

    Batch norm uses its running statistics, so that a sample's score does not depend on those it is scored with. Samples
    are cropped and mirrored as in training: they compete with samples whose scores come from such views, and a plain
    view looks easier than those.
    """
    network, fabric, preparation = setup.network, setup.fabric, setup.preparation

    def score(indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        augmentation, drawn = preparation.augmentation, None
        if augmentation is not None:
            # Crops and mirrors of all samples by index: the same for any number of ranks.
            generator = torch.Generator().manual_seed(derive_seed(setup.recipe.seed, "score", epoch))
            drawn = draw_augmentation(setup.pruner.samples, augmentation.crop_padding, augmentation.flip, generator)
        random = seeded(setup.recipe.seed, "score", epoch, fabric.global_rank)
        with evaluating(network), random, torch.no_grad(), fabric.autocast():
            for rows, images in setup.steps.source.stored(indices, setup.batch_size * _LARGER):
                moved = images.to(fabric.device, non_blocking=True)
                if drawn is None:
                    prepared = preparation.plain(moved)
                else:
                    prepared = preparation(moved, *(table[rows.cpu()].to(moved.device) for table in drawn))
                with padded(setup.batch_size * _LARGER, fabric.device):
                    logits = network(prepared)
                yield rows, logits

    return score
