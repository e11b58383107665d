"""The training loop: a recipe goes in, a run folder comes out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.executing import Ended, Task, end_with_parent, exit_code_of, run_tasks
from calibrant.training.checkpoint import Checkpoint, newest_checkpoint, trained_data
from calibrant.training.continuing import state_of, train_or_resume
from calibrant.training.defaults import default_recipe, method_settings, named_recipes, paper_recipe
from calibrant.training.inputs import check_inputs
from calibrant.training.launch import ProcessLost, first_process_speaks, is_first_process, resumable, stopped_message
from calibrant.training.recipe import Recipe, flatten, recipe_keys, suggest_key
from calibrant.training.run import Run, Split
from calibrant.training.section import Settings
from calibrant.training.wording import one_line

if TYPE_CHECKING:
    from calibrant.training.best import selection_figure
    from calibrant.training.data import TrainingData
    from calibrant.training.engine import TrainingDiverged, resume, train
    from calibrant.training.progress import ForwardingReporter, LiveBar, PlainLines, Quiet, Reporter
    from calibrant.training.settings import (
        anchored_recipe,
        default_folder,
        names_in,
        parse_assignment,
        parse_option,
        recipe_from,
        refuse_settings,
        shared_recipe,
    )
    from calibrant.training.setup import Setup, load_data, make_fabric
    from calibrant.training.sources import (
        calibrated_paths,
        calibration_sources,
        calibrators_near,
        load_judged,
        load_predictions,
        own_calibrator,
        rule_path,
        run_calibrator,
        shortlist_path,
        source_path,
    )
    from calibrant.training.torchdata import TorchData
    from calibrant.training.trackers import MLflow, TensorBoard, WeightsAndBiases, make_reporter

__all__ = [
    "Checkpoint",
    "Ended",
    "ForwardingReporter",
    "LiveBar",
    "MLflow",
    "PlainLines",
    "ProcessLost",
    "Quiet",
    "Recipe",
    "Reporter",
    "Run",
    "Settings",
    "Setup",
    "Split",
    "Task",
    "TensorBoard",
    "TorchData",
    "TrainingData",
    "TrainingDiverged",
    "WeightsAndBiases",
    "anchored_recipe",
    "calibrated_paths",
    "calibration_sources",
    "calibrators_near",
    "check_inputs",
    "default_folder",
    "default_recipe",
    "end_with_parent",
    "exit_code_of",
    "first_process_speaks",
    "flatten",
    "is_first_process",
    "load_data",
    "load_judged",
    "load_predictions",
    "make_fabric",
    "make_reporter",
    "method_settings",
    "named_recipes",
    "names_in",
    "newest_checkpoint",
    "one_line",
    "own_calibrator",
    "paper_recipe",
    "parse_assignment",
    "parse_option",
    "recipe_from",
    "recipe_keys",
    "refuse_settings",
    "resumable",
    "resume",
    "rule_path",
    "run_calibrator",
    "run_tasks",
    "selection_figure",
    "shared_recipe",
    "shortlist_path",
    "source_path",
    "state_of",
    "stopped_message",
    "suggest_key",
    "train",
    "train_or_resume",
    "trained_data",
]

# torch takes a second to import, the engine more: reading a recipe or a run must not wait for them.
_IMPORTED_ON_USE = {
    "best": ("selection_figure",),
    "data": ("TrainingData",),
    "engine": ("TrainingDiverged", "resume", "train"),
    "progress": ("ForwardingReporter", "LiveBar", "PlainLines", "Quiet", "Reporter"),
    "setup": ("Setup", "load_data", "make_fabric"),
    "settings": (
        "anchored_recipe",
        "default_folder",
        "names_in",
        "parse_assignment",
        "parse_option",
        "recipe_from",
        "refuse_settings",
        "shared_recipe",
    ),
    "sources": (
        "calibrated_paths",
        "calibration_sources",
        "calibrators_near",
        "load_judged",
        "load_predictions",
        "own_calibrator",
        "rule_path",
        "run_calibrator",
        "shortlist_path",
        "source_path",
    ),
    "torchdata": ("TorchData",),
    "trackers": ("MLflow", "TensorBoard", "WeightsAndBiases", "make_reporter"),
}


def __getattr__(name: str) -> Any:
    for file, names in _IMPORTED_ON_USE.items():
        if name in names:
            return getattr(import_module(f"calibrant.training.{file}"), name)
    raise AttributeError(f"module 'calibrant.training' has no attribute {name!r}")
