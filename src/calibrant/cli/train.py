"""`calibrant train`: a recipe file, flags, or both (flags win). `calibrant predict`: a finished run, other views."""

from pathlib import Path
from typing import Annotated, Literal

from calibrant.cli._shared import Assignments, DataDir, Json, Out, OutOr, TrustCode, answer, complain
from calibrant.errors import InvalidInput
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
    views: Literal["none", "mirror", "mirror+shift"] | None = None,
    out: Out = None,
    resume: Path | None = None,
    data_dir: DataDir = None,
    devices: int | None = None,
    set_: Assignments = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Train a classifier and write a run folder. Continue a stopped run with --resume.

    Args:
        recipe: TOML file with all settings, or the name of a recipe that ships (cifar10-resnet50); flags override it.
        data: Data set: digits, cifar10, cifar100, ..., arrays:FILE.npz, folder:DIR, or module:function, your own torch
            datasets. See `calibrant data list`.
        model: Network: tiny, resnet18, resnet32, resnet50, timm:NAME, torchvision:NAME, or module:factory.
        method: Training objective and pruning plan: see `calibrant methods`; or module:function, a loss of your own.
        epochs: Number of epochs; schedules and plans scale with it. By default it follows from the size of the data.
        budget: Share of the compute of the full run. A plan solves for it, a method without one gets fewer epochs;
            without --method smaller images come first, the best known way to spend it.
        seed: Seed of initialisation, order, augmentation and pruning.
        views: Average the logits of these views of a picture; mirror takes 2 times as long, mirror+shift 6 times.
        out: New run folder; by default runs/DATA-MODEL-METHOD-seedN.
        resume: Run folder to continue; nothing but the number of processes can be changed then.
        devices: Number of processes, also with --resume.
        set_: Any other setting of recipe.toml, as key=value: --set optimiser.lr=0.05. Repeatable.
    """
    from calibrant.training import Run, make_reporter, recipe_from
    from calibrant.training import resume as resume_training
    from calibrant.training import train as start_training
    from calibrant.training.data.spec import own_data
    from calibrant.training.launch import resumable
    from calibrant.training.settings import anchored_recipe, default_folder, parse_assignment

    changes = {
        "seed": seed,
        "epochs": epochs,
        "budget": budget,
        "model.name": model,
        "model.views": views,
        "method.name": method,
        "engine.devices": devices,
        **dict(parse_assignment(text, method_options=True) for text in set_ or []),
    }
    reporter = make_reporter()
    if resume is not None:
        others = {"recipe": recipe, "data": data, "out": out}
        if any(value is not None for value in {**changes, "engine.devices": None, **others}.values()):
            raise InvalidInput("--resume continues a run as it was begun: leave out the other settings.")
        if Run(resume).finished:
            complain(f"run {resume} is finished already: nothing to do")
        with resumable(resume):
            run = resume_training(
                resume, devices=changes["engine.devices"], data_dir=data_dir, reporter=reporter, trust_code=trust_code
            )
    else:
        trust_named(changes["method.name"], changes["model.name"], own_data(data))
        wanted = recipe_from(recipe, data, changes, trust_code=trust_code)
        folder = out or default_folder(wanted)
        with resumable(folder):
            run = start_training(anchored_recipe(wanted), folder, data_dir=data_dir, reporter=reporter)
    answer(run.describe(), {"run": str(run.path), **run.summary}, as_json=as_json)


def predict(
    run: Path,
    /,
    *,
    views: Literal["none", "mirror", "mirror+shift"],
    out: Annotated[Path, OutOr],
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Predict with the network of a finished run and other views of each picture, into a new run folder.

    Nothing is trained. The new run has its own predictions and policy, and its exported file contains the views.

    Args:
        run: A finished run folder.
        views: Average the logits of these views: mirror makes predictions 2 times as expensive, mirror+shift 6 times.
        out: New run folder.
    """
    from calibrant.training import predict_again

    again = predict_again(run, out, views=views, data_dir=data_dir, trust_code=trust_code)
    answer(again.describe(), {"run": str(again.path), **again.summary}, as_json=as_json)
