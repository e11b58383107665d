"""`calibrant train`: a recipe file, flags, or both (flags win)."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from calibrant.cli._flags import Assignments, DataDir, Json, Out, Switch, TrustCode
from calibrant.cli._say import answer, complain
from calibrant.own_code import trust_named


def train(
    *,
    recipe: Path | None = None,
    data: str | None = None,
    model: str | None = None,
    method: str | None = None,
    epochs: int | None = None,
    budget: float | None = None,
    seed: int | None = None,
    out: Out = None,
    resume: Path | None = None,
    data_dir: DataDir = None,
    batch_size: int | None = None,
    lr: float | None = None,
    mirror: bool | None = None,
    balance: Literal["none", "loss", "sampler", "logit-adjustment"] | None = None,
    lambda_: Annotated[float | None, Parameter(name="--lambda")] = None,
    prune_fraction: float | None = None,
    prune_interval: int | None = None,
    prune_start: int | str | None = None,
    prune_ema: float | None = None,
    prune_drop: float | None = None,
    prune_share: float | None = None,
    prune_anneal: float | None = None,
    set_: Assignments = None,
    accelerator: Literal["auto", "cpu", "cuda"] | None = None,
    devices: int | None = None,
    precision: Literal["auto", "bf16-mixed", "32-true", "64-true"] | None = None,
    mode: Literal["auto", "eager", "compiled", "graphed"] | None = None,
    data_path: Literal["auto", "resident", "loader", "stream"] | None = None,
    workers: int | None = None,
    skip_unreadable: Annotated[bool, Switch] = False,
    tensorboard: Annotated[bool, Switch] = False,
    mlflow: Annotated[bool, Switch] = False,
    wandb: Annotated[bool, Switch] = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Train a classifier and leave a run folder; a stopped run goes on with --resume.

    Args:
        recipe: TOML file with all settings, or the name of a recipe that ships (cifar10-resnet50); flags override it.
        data: Data set: digits, cifar10, cifar100, ..., arrays:FILE.npz, folder:DIR, or module:function, your own torch
            datasets. See `calibrant data list`.
        model: Network: tiny, resnet32, resnet50, timm:NAME, torchvision:NAME, transformers:PATH, or module:factory.
        method: Training objective and pruning plan: see `calibrant methods`; or module:function, a loss of your own.
        epochs: Number of epochs; schedules and pruning plans scale with it. By default it follows from the size of the
            data.
        budget: Share of epochs times samples that may be trained on: a plan solves for it, a method without one gets
            fewer epochs; without --method the best known way to spend it.
        seed: Seed of initialisation, order, augmentation and pruning.
        out: New run folder; by default runs/DATA-MODEL-METHOD-seedN.
        resume: Run folder to continue; nothing else about the run can be changed then.
        batch_size: Samples a step, over all processes.
        lr: Initial learning rate.
        mirror: Whether half of the training images are mirrored left to right; by default not where the name says
            digits or letters.
        balance: How rare classes are made up for: loss weighs them more, sampler draws them as often as the others,
            logit-adjustment trains as if they were as frequent. By default not at all: docs/imbalance.md says why.
        lambda_: Weight of the calibration term.
        prune_fraction: Share of each class that leaves at each pruning.
        prune_interval: Epochs between prunings.
        prune_start: First epoch after which is pruned, or first-drop (of the learning rate), or plateau (of the loss).
        prune_ema: Weight of the newest confidence in the moving average (kappa).
        prune_drop: Unbiased plans: share of the well-learned samples that rests in an epoch.
        prune_share: Unbiased plans: share of each class that counts as well learned.
        prune_anneal: Final epochs (or share of the run) on all data.
        set_: Any other setting, as key=value: --set schedule.kind=cosine --set method.options.gamma=2. Repeatable.
        accelerator: Device to train on.
        devices: Number of processes, also with --resume; torchrun and srun work too.
        precision: Number format; auto is bf16-mixed on a GPU, 32-true on a CPU.
        mode: How a step runs; auto captures it in a CUDA graph where it can.
        data_path: Whether the set lives on the device, comes through a loader, or is streamed from a folder; auto
            streams what is too large for the memory.
        workers: Loader processes; 0 reads in this process, and streams with one process per core.
        skip_unreadable: Leave out pictures of a folder that cannot be read, and name them.
        tensorboard: Also write TensorBoard scalars into the run folder.
        mlflow: Also log to MLflow, where its own settings (MLFLOW_TRACKING_URI) say.
        wandb: Also log to Weights & Biases; WANDB_MODE=offline keeps everything on this machine.
    """
    from calibrant.training import (
        Run,
        anchored_recipe,
        default_folder,
        is_first_process,
        make_reporter,
        parse_assignment,
        recipe_from,
        refuse_settings,
        resumable,
    )
    from calibrant.training.data import own_data

    changes = {
        "seed": seed,
        "epochs": epochs,
        "budget": budget,
        "model.name": model,
        "method.name": method,
        "optimiser.batch_size": batch_size,
        "optimiser.lr": lr,
        "data.mirror": mirror,
        "balance": balance,
        "engine.accelerator": accelerator,
        "engine.devices": devices,
        "engine.precision": precision,
        "engine.mode": mode,
        "engine.data_path": data_path,
        "engine.workers": workers,
        "method.options.fraction": prune_fraction,
        "method.options.interval": prune_interval,
        "method.options.start": prune_start,
        "method.options.ema": prune_ema,
        "method.options.drop": prune_drop,
        "method.options.share": prune_share,
        "method.options.anneal": prune_anneal,
        **dict(parse_assignment(text, method_options=True) for text in set_ or []),
    }
    from calibrant.training import resume as resume_training
    from calibrant.training import train as start_training

    reporter = make_reporter(tensorboard=tensorboard, mlflow=mlflow, wandb=wandb)
    if resume is not None:
        others = {"recipe": recipe, "data": data, "out": out, "lambda": lambda_, "skip": skip_unreadable or None}
        refuse_settings({**changes, "engine.devices": None, **others})
        if Run.open(resume).finished:
            complain(f"run {resume} is finished already: nothing to do")
        with resumable(resume):
            run = resume_training(resume, devices=devices, data_dir=data_dir, reporter=reporter, trust_code=trust_code)
    else:
        trust_named(changes["method.name"], changes["model.name"], own_data(data))
        wanted = recipe_from(
            *(recipe, data, changes),
            calibration_weight=lambda_,
            skip_unreadable=skip_unreadable,
            trust_code=trust_code,
        )
        folder = out or default_folder(wanted)
        with resumable(folder):
            run = start_training(anchored_recipe(wanted), folder, data_dir=data_dir, reporter=reporter)
    if is_first_process():
        answer(run.describe(), {"run": str(run.path), **run.summary}, as_json=as_json)
