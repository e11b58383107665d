"""From a recipe to the objects of a run: device, data, network, loss, pruner, optimiser, step mode."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset as TorchDataset

from calibrant.errors import InvalidInput, at_level, importing, invalid
from calibrant.losses import distributed
from calibrant.losses.base import balanced_loss
from calibrant.pruning import ConfidencePruner
from calibrant.training import methods
from calibrant.training.batches import Batches, EpochTables, Preparation
from calibrant.training.data import Dataset, Images, StreamedImages, load_dataset
from calibrant.training.data.dataset import Size
from calibrant.training.data.spec import own_data
from calibrant.training.final_weights import BestEpoch
from calibrant.training.launch import FABRIC_LOGGERS
from calibrant.training.network import (
    FLOPS_PER_GRADIENT,
    choose_input,
    epoch_sizes,
    forward_flops,
    freeze,
    make_model,
    synchronise_batch_norm,
    with_input,
)
from calibrant.training.recipe import OptimiserSection, Recipe
from calibrant.training.reproducibility import derive_seed
from calibrant.training.run_data import TorchData, TrainingData, own_torch_data
from calibrant.training.step import GraphedSteps, Steps

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Below this batch size a compiled but not captured step waits for Python longer than an eager one (measured on an
# H200: ResNet-32 at batch 128, 10.0 against 13.7 thousand images per second; at 1024 compiling wins by half).
_COMPILE_FROM = 512
# Prefix of the name of data that came as Python objects; such a set cannot be loaded by name.
OWN_DATA = "python:"


def on_gpu(recipe: Recipe) -> bool:
    """Whether the recipe trains on GPUs here; more of them than there are, or none, are refused."""
    engine, gpus = recipe.engine, torch.cuda.device_count()
    if engine.accelerator == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("engine.accelerator is cuda, but torch sees no GPU. Use cpu or auto.")
    if engine.accelerator == "cpu" or not torch.cuda.is_available():
        return False
    if engine.devices > gpus:
        raise invalid("engine.devices", f"not exceed the {gpus} GPUs here", engine.devices)
    return True


def make_fabric(recipe: Recipe) -> "Fabric":
    """Lightning Fabric for the recipe's device, precision and number of processes, not launched yet."""
    with importing("training", "Lightning", "train"):
        from lightning.fabric import Fabric
        from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    accelerator, precision_by_default = "cpu", "32-true"
    if on_gpu(recipe):
        accelerator, precision_by_default = "cuda", "bf16-mixed"
    precision: Any = recipe.engine.precision
    if precision == "auto":
        precision = precision_by_default
    elif precision == "64-true":
        # `Setup` casts network and images to float64. Fabric's own plugin would turn the logits back into
        # float32, and the loss with them; under this name it leaves everything as it is.
        precision = "32-true"
    strategy = "auto"
    if distributed.is_distributed():
        strategy = "ddp"
    with at_level(logging.WARNING, *FABRIC_LOGGERS):
        fabric = Fabric(
            accelerator=accelerator,
            devices=distributed.world_size(),
            precision=precision,
            strategy=strategy,
            # Fabric's own choice takes any job of Slurm for one that srun started.
            plugins=[LightningEnvironment()],
        )
    if recipe.optimiser.batch_size < fabric.world_size:
        rule = f"hold a sample for each of the {fabric.world_size} processes"
        raise invalid("optimiser.batch_size", rule, recipe.optimiser.batch_size)
    return fabric


def load_data(recipe: Recipe, data_dir: str | Path | None, given: Dataset | TorchData | None = None) -> TrainingData:
    """The data set that was given, else the recipe's; split, in memory or streamed."""
    if isinstance(given, TorchData):
        return given.prepare(recipe)
    if given is not None:
        return TrainingData.make(recipe, given)
    if recipe.data.name.startswith(OWN_DATA):
        raise InvalidInput(
            f"the run was begun from Python on data of its own ({recipe.data.name}). "
            "Continue it there with calibrant.training.resume(path, data=...)."
        )
    if own := own_data(recipe.data.name):
        return own_torch_data(own, recipe.own_code.get(own.partition(":")[0])).prepare(recipe)
    data = load_dataset(recipe.data.name, data_dir=data_dir, data_path=recipe.engine.data_path)
    return TrainingData.make(recipe, data)


def make_pruner(
    recipe: Recipe, plan: methods.Plan, targets: Tensor, *, n_classes: int, batch_size: int
) -> ConfidencePruner:
    """The pruner of the recipe's method; one that keeps everything if the method prunes nothing."""
    options = dict(plan.pruning or {})
    if plan.pruning is not None:
        first = plan.pruning["schedule"].first
        if first > recipe.epochs:
            hint = "Train longer, or prune earlier: --set method.options.start=N."
            raise invalid("epochs", f"reach the first pruning, after epoch {first}", recipe.epochs, hint)
    seed = derive_seed(recipe.seed, "order")
    pruner = ConfidencePruner(
        targets, n_classes=n_classes, epochs=recipe.epochs, batch_size=batch_size, seed=seed, **options
    )
    # The engine splits batches itself, so that the parts of the processes may differ in size.
    pruner.global_batch_size = recipe.optimiser.batch_size
    return pruner


def make_optimiser(settings: OptimiserSection, model: nn.Module, lr: Tensor) -> torch.optim.Optimizer:
    """The optimiser with the learning rate as a tensor on the device, so that a captured step follows its changes."""
    on_gpu = lr.device.type == "cuda"
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The fused kernels read the rate on the device; the others would ask the host for it.
    both: dict[str, Any] = {"lr": lr if on_gpu else float(lr), "weight_decay": settings.weight_decay, "fused": on_gpu}
    if settings.name == "sgd":
        return torch.optim.SGD(trained, momentum=settings.momentum, nesterov=settings.nesterov, **both)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(trained, capturable=on_gpu, **both)


def trained_recipe(recipe: Recipe, data: TrainingData) -> Recipe:
    """The recipe that is trained: what its budget pays for, counted in floating-point operations.

    With smaller images early in the run, as many epochs as cost no more than the budget's share of the epochs at full
    size; a pruning plan makes as many updates as that.
    """
    if recipe.budget == 1 or not recipe.schedule.resolution:
        return recipe.within_budget()
    network = make_model(recipe, data)
    costs: dict[Size, int] = {}

    def cost(epochs: int) -> float:
        """Cost of so many epochs, in epochs at full size."""
        sizes = epoch_sizes(recipe.changed({"epochs": epochs, "budget": 1.0}), data.image_shape)
        for size in {*sizes, data.image_shape[1:]} - costs.keys():
            costs[size] = forward_flops(network, data.image_shape, size)
        return sum(costs[size] for size in sizes) / costs[data.image_shape[1:]]

    allowed = recipe.budget * recipe.epochs + 1e-9
    if recipe.plan().pruning is not None:
        schedule_alone = cost(recipe.epochs)
        if allowed >= schedule_alone:
            rule = f"be below {schedule_alone / recipe.epochs:.3g}, which the resolution schedule alone costs"
            raise invalid("budget", rule, recipe.budget, "Leave the pruning plan out, or the schedule.")
        # Samples rest in some epochs only; the sizes of these say what that saves.
        plain = recipe.changed({"budget": 1.0})
        timetable = make_pruner(plain, plain.plan(), data.targets, n_classes=data.n_classes, batch_size=1).timetable
        sizes = epoch_sizes(plain, data.image_shape)
        saving = [costs[sizes[epoch]] for epoch in range(1, recipe.epochs) if timetable.action(epoch) == "draw"]
        per_epoch = sum(saving) / max(len(saving), 1) / costs[data.image_shape[1:]] or 1.0
        rest = (schedule_alone - allowed) / (per_epoch * recipe.epochs)
        try:
            trained = recipe.changed({"budget": 1 - rest})
            make_pruner(trained, trained.plan(), data.targets, n_classes=data.n_classes, batch_size=1)
        except InvalidInput as error:
            hint = f"These are shares of all updates; {recipe.budget:g} is the share of the compute that was asked for."
            raise InvalidInput(f"{error} {hint}") from error
        return trained
    epochs = recipe.within_budget().epochs
    while cost(epochs + 1) <= allowed:
        epochs += 1
    return recipe.within_budget(epochs)


class Setup:
    """Everything that a run's loop holds, built once from the recipe."""

    def __init__(self, recipe: Recipe, fabric: "Fabric", data: TrainingData) -> None:
        self.recipe, self.fabric = recipe, fabric
        self.expected_input = choose_input(recipe.model, data)
        self.data = data = with_input(data, self.expected_input)
        device = fabric.device
        self.plan = recipe.plan()
        self.dtype = torch.float64 if recipe.engine.precision == "64-true" else torch.float32
        self.full_size = data.image_shape[1:]
        self.batch_size = len(range(fabric.global_rank, recipe.optimiser.batch_size, fabric.world_size))
        self.pruner = make_pruner(
            recipe, self.plan, data.targets, n_classes=data.n_classes, batch_size=self.batch_size
        ).to(device)
        self.network = make_model(recipe, data, self.expected_input).to(device=device, dtype=self.dtype)
        if device.type == "cuda":
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if fabric.world_size > 1:
            self.network = synchronise_batch_norm(self.network, device)
        self.sizes = epoch_sizes(recipe, data.image_shape)
        if self.expected_input is not None and set(self.sizes) != {self.full_size}:
            raise InvalidInput(
                f"schedule.resolution needs a network that takes smaller images; {recipe.model.name} resizes them "
                "to its own size. Set model.input to data, or leave the schedule out."
            )
        # Of one image at each size of the run; sizes that the network cannot take are refused here.
        self.forward_flops = {
            size: forward_flops(self.network, data.image_shape, size) for size in {*self.sizes, self.full_size}
        }
        self.frozen = freeze(self.network, recipe.model.freeze)
        self.average = AveragedModel(self.network) if recipe.averaged_epochs else None
        self.best = BestEpoch(recipe.select) if recipe.select != "last" else None
        self.loss = balanced_loss(self.plan.loss, recipe.balance, data.targets, data.n_classes).to(device)
        self.lr = torch.tensor(recipe.learning_rate(0.0), device=device)
        self.optimiser = make_optimiser(recipe.optimiser, self.network, self.lr)
        self.preparation = Preparation(
            data.mean,
            data.std,
            augmentation=data.augmentation,
            device=device,
            dtype=self.dtype,
            full_size=self.full_size,
        )
        self.data_path = choose_data_path(recipe, data.train, device)
        self.mode = choose_mode(recipe, fabric, self.data_path)
        self.steps = self._make_steps()

    def set_learning_rate(self, value: float) -> None:
        """Change the learning rate in place."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def enter(self, epoch: int) -> None:
        """Prepare for an epoch: the size of its images, and everything that is trained in training mode."""
        size = self.sizes[epoch - 1]
        self.preparation.size = size if size != self.full_size else None
        self.network.train()
        for module in self.frozen:
            module.training = False

    def epoch_flops(self, epoch: int, *, trained: int, scored: int) -> float:
        """Floating-point operations of an epoch: three forward passes per gradient, one per scored sample."""
        size = self.sizes[epoch - 1]
        return float((FLOPS_PER_GRADIENT * trained + scored) * self.forward_flops[size])

    def _make_steps(self) -> Steps:
        recipe, fabric, data, size = self.recipe, self.fabric, self.data, self.batch_size
        tables = EpochTables(
            self.pruner,
            augmentation=self.preparation.augmentation,
            batch_size=recipe.optimiser.batch_size,
            seed=recipe.seed,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            balanced=data.targets if recipe.balance == "sampler" else None,
        )
        model, optimiser = fabric.setup(self.network, self.optimiser, move_to_device=False)
        items, resident = data.train, self.data_path == "resident"
        if resident and isinstance(items, Images):
            items = Images(items.images.to(fabric.device), items.labels.to(fabric.device))
        workers = recipe.engine.workers
        source = Batches(items, tables, self.preparation, batch_size=size, workers=workers, resident=resident)
        kind: type[Steps] = Steps
        if self.mode == "graphed":
            kind = GraphedSteps
        steps = kind(fabric, model, self.loss, optimiser, source)
        if self.mode != "eager":
            steps.compile()
        return steps


def choose_mode(recipe: Recipe, fabric: "Fabric", data_path: str) -> str:
    """The step mode for this device; what cannot work together is refused here, before any time is spent."""
    wanted, on_gpu = recipe.engine.mode, fabric.device.type == "cuda"
    capturable = on_gpu and fabric.world_size == 1 and data_path == "resident"
    if wanted == "graphed" and not capturable:
        raise InvalidInput("engine.mode graphed needs one GPU and resident data. Use auto, or change one of them.")
    if wanted != "auto":
        return wanted
    if capturable:
        return "graphed"
    if on_gpu and recipe.optimiser.batch_size >= _COMPILE_FROM:
        return "compiled"
    return "eager"


def choose_data_path(recipe: Recipe, items: TorchDataset[Any], device: torch.device) -> str:
    """Resident if the set is one tensor that takes at most half of the device's free memory."""
    wanted = recipe.engine.data_path
    if isinstance(items, StreamedImages):
        return "stream"
    if wanted == "stream":
        raise InvalidInput("engine.data_path stream needs data by the name folder:DIR. Use auto or loader.")
    if not isinstance(items, Images):
        if wanted == "resident":
            raise InvalidInput("engine.data_path resident needs uint8 images in one tensor. Use auto or loader.")
        return "loader"
    if wanted != "auto":
        return wanted
    # Half of the free memory is left to the network.
    if device.type == "cuda" and items.images.numel() >= torch.cuda.mem_get_info(device)[0] / 2:
        return "loader"
    return "resident"
