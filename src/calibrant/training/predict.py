"""Forward passes without training: logits of held-out images, and scores of samples for pruning."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calibrant.pruning.pruner import Scorer
from calibrant.training.batches import BatchReader, ResidentBatches
from calibrant.training.data import draw_augmentation
from calibrant.training.network import padded
from calibrant.training.reproducibility import derive_seed, seeded
from calibrant.training.setup import Setup


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


def scorer(setup: Setup, epoch: int) -> Scorer:
    """How samples are scored after `epoch`.

    Batch norm uses its running statistics, so that a sample's score does not depend on those it is scored with. Where
    only samples that rest are scored, they are cropped and mirrored as in training: they compete with samples whose
    scores come from such views, and a plain view looks easier than those. Where all are scored, all are seen plain.
    """

    def score(indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        network, fabric = setup.network, setup.fabric
        random = seeded(setup.recipe.seed, "score", epoch, fabric.global_rank)
        with evaluating(network), random, torch.no_grad(), fabric.autocast():
            for rows, images in _views(setup, indices, epoch):
                with padded(setup.batch_size * _LARGER, fabric.device):
                    logits = network(images)
                yield rows, logits

    return score


def _views(setup: Setup, indices: Tensor, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of these samples, ready for the network, in batches."""
    offsets, flips = _augmentation(setup, epoch)
    for rows, images in _images(setup, indices):
        moved, here = images.to(setup.fabric.device, non_blocking=True), rows.cpu()
        if offsets is None or flips is None:
            yield rows, setup.preparation.plain(moved)
        else:
            drawn = offsets[here].to(moved.device), flips[here].to(moved.device)
            yield rows, setup.preparation(moved, *drawn)


def _augmentation(setup: Setup, epoch: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Crops and mirrors of all samples by index: the same for any number of ranks."""
    augmentation = setup.preparation.augmentation
    if augmentation is None or setup.pruner.scoring == "all":
        return None, None
    generator = torch.Generator().manual_seed(derive_seed(setup.recipe.seed, "score", epoch))
    return draw_augmentation(setup.pruner.samples, augmentation.crop_padding, augmentation.flip, generator)


def _images(setup: Setup, indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    source, batch_size = setup.steps.source, setup.batch_size * _LARGER
    if isinstance(source, ResidentBatches):
        for rows in torch.split(indices.to(source.images.device), batch_size):
            yield rows, source.images[rows]
        return
    workers, order = setup.recipe.engine.workers, indices.tolist()
    for images, _, rows in BatchReader(setup.data.train, batch_size=batch_size, workers=workers, order=order):
        yield rows, images
