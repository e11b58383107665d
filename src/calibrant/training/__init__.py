"""The training loop: a recipe goes in, a run folder comes out."""

from calibrant.training.checkpoint import trained_data
from calibrant.training.defaults import default_recipe, method_settings, named_recipes, paper_recipe
from calibrant.training.engine import TrainingDiverged, resume, state_of, train, train_or_resume
from calibrant.training.final_weights import selection_figure
from calibrant.training.progress import ForwardingReporter, LiveBar, PlainLines, Quiet, Reporter
from calibrant.training.recipe import Recipe, Settings, flatten, recipe_keys, suggest_key
from calibrant.training.run import Run
from calibrant.training.run_data import TorchData, TrainingData
from calibrant.training.settings import (
    check_inputs,
    names_in,
    parse_option,
    recipe_from,
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
from calibrant.training.trackers import TrackedReporter, make_reporter

__all__ = [
    "ForwardingReporter",
    "LiveBar",
    "PlainLines",
    "Quiet",
    "Recipe",
    "Reporter",
    "Run",
    "Settings",
    "Setup",
    "TorchData",
    "TrackedReporter",
    "TrainingData",
    "TrainingDiverged",
    "calibrated_paths",
    "calibration_sources",
    "calibrators_near",
    "check_inputs",
    "default_recipe",
    "flatten",
    "load_data",
    "load_judged",
    "load_predictions",
    "make_fabric",
    "make_reporter",
    "method_settings",
    "named_recipes",
    "names_in",
    "own_calibrator",
    "paper_recipe",
    "parse_option",
    "recipe_from",
    "recipe_keys",
    "resume",
    "rule_path",
    "run_calibrator",
    "selection_figure",
    "shared_recipe",
    "shortlist_path",
    "source_path",
    "state_of",
    "suggest_key",
    "train",
    "train_or_resume",
    "trained_data",
]
