"""The network of a run: what it expects of its images, which of its parts are trained, and how fast each learns."""

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from calibrant.errors import did_you_mean, invalid
from calibrant.training.models import ModelInput, build_model, expected_input
from calibrant.training.models.pretrained_weights import head_of
from calibrant.training.recipe import ModelSection, OptimiserSection, Recipe
from calibrant.training.reproducibility import seeded
from calibrant.training.run_data import SeededItems, TrainingData

_BACKBONE = "backbone"
# Networks of these libraries come with a statement about their images. torchvision's do, too, but runs of older
# versions took the data set's normalisation for them, and a recipe means the same for ever.
_STATE_THEIR_INPUT = ("timm:", "transformers:")
# Modules that only wrap a network: their name is no part of what a user calls its layers.
_WRAPPER = "model."


def make_model(recipe: Recipe, data: TrainingData, expected: ModelInput | None = None) -> nn.Module:
    """The network, with the weights that the recipe names; everything else is drawn from the recipe's seed."""
    settings = recipe.model
    with seeded(recipe.seed, "initialise"):
        return build_model(
            settings.name,
            n_classes=data.n_classes,
            image_shape=data.image_shape,
            weights=settings.weights,
            expected=expected,
        )


def choose_input(settings: ModelSection, data: TrainingData) -> ModelInput | None:
    """Size and normalisation that the network gives its images; None if they are the data set's."""
    if settings.input == "data" or (settings.input == "auto" and not settings.name.startswith(_STATE_THEIR_INPUT)):
        return None
    if isinstance(data.train, SeededItems):  # the user's own datasets
        if settings.input == "model":
            way_out = "Their images are finished input: resize and normalise them there."
            raise invalid("model.input", "be auto or data for your own torch datasets", "model", way_out)
        return None
    expected = expected_input(settings.name)
    if expected is None:
        way_out = "Networks of timm:, torchvision: and transformers: state what they expect."
        raise invalid("model.input", f"be auto or data for {settings.name}", "model", way_out)
    if expected.mean is None or expected.std is None:
        expected = replace(expected, mean=data.mean, std=data.std)
    return expected


def with_input(data: TrainingData, expected: ModelInput | None) -> TrainingData:
    """The data for a network that normalises by itself: images from 0 to 1."""
    if expected is None:
        return data
    channels = data.image_shape[0]
    return replace(data, mean=(0.0,) * channels, std=(1.0,) * channels)


class Freezing:
    """Keeps parts of a network as they are: their weights, and the statistics and dropout that belong to them.

    Args:
        network: The network; parameters that its maker froze stay frozen.
        settings: Which parts, and for how many epochs only the last layer is trained.
    """

    def __init__(self, network: nn.Module, settings: ModelSection) -> None:
        self.network, self.probe = network, settings.probe
        self.probing = settings.probe > 0
        self._parts, self._head = settings.freeze, _bare(head_of(network)) if self.probing or settings.freeze else ""
        self._trainable = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
        self._check_parts()
        self.apply()

    def apply(self) -> None:
        """Freeze what rests in this phase, and nothing else."""
        if not self._head:
            return
        parameters = dict(self.network.named_parameters())
        for name in self._trainable:
            parameters[name].requires_grad_(not self._rests(name))
        if not any(parameter.requires_grad for parameter in parameters.values()):
            raise invalid("model.freeze", "leave something to train", ", ".join(self._parts))

    def hold(self) -> None:
        """Put what rests into evaluation mode again: `network.train()` puts everything into training mode."""
        if not self._head:
            return
        for name, module in self.network.named_modules():
            if name and self._rests(name):
                module.training = False

    def _rests(self, name: str) -> bool:
        bare = _bare(name)
        if self.probing or _BACKBONE in self._parts:
            return not _within(bare, self._head)
        return any(_within(bare, part) for part in self._parts)

    def _check_parts(self) -> None:
        known = list(dict.fromkeys(_bare(name) for name, _ in _named(self.network)))
        for part in self._parts:
            if part != _BACKBONE and not any(_within(name, part) for name in known):
                tops = list(dict.fromkeys(name.partition(".")[0] for name in known))
                raise invalid(
                    "model.freeze", "name parts of the network", repr(part), did_you_mean(part, [_BACKBONE, *tops])
                )


def rate_factors(network: nn.Module, settings: OptimiserSection) -> dict[float, list[nn.Parameter]]:
    """Parameters that are trained, by the factor of their learning rate.

    The last layer learns at the full rate, the blocks below it at `backbone_lr`, times `layer_decay` for each block up
    to the last layer. A block is what shares a name up to its first number, as `layer1.0` or `encoder.layer.11`.

    >>> layers = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2))
    >>> list(rate_factors(layers, OptimiserSection(backbone_lr=0.5, layer_decay=0.5)))
    [0.125, 0.25, 1.0]
    """
    trained = [(_bare(name), parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if settings.backbone_lr == 1 and settings.layer_decay == 1:
        return {1.0: [parameter for _, parameter in trained]}
    head = _bare(head_of(network))
    # Frozen blocks count: what learns faster or slower does not depend on what rests.
    every = [_bare(name) for name, _ in network.named_parameters()]
    blocks = list(dict.fromkeys(_block(name) for name in every if not _within(name, head)))
    found: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trained:
        factor = 1.0
        if not _within(name, head):
            factor = settings.backbone_lr * settings.layer_decay ** (len(blocks) - blocks.index(_block(name)))
        found.setdefault(factor, []).append(parameter)
    return found


def _named(network: nn.Module) -> Iterator[tuple[str, object]]:
    yield from network.named_parameters()
    yield from network.named_modules()


def _bare(name: str) -> str:
    while name.startswith(_WRAPPER):
        name = name.removeprefix(_WRAPPER)
    return name


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _block(name: str) -> str:
    words = name.split(".")
    for place, word in enumerate(words):
        if word.isdigit():
            return ".".join(words[: place + 1])
    return ".".join(words[:-1] or words)
