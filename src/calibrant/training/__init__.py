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
    "check_inputs",
    "default_recipe",
    "flatten",
    "load_data",
    "make_fabric",
    "make_reporter",
    "method_settings",
    "named_recipes",
    "names_in",
    "paper_recipe",
    "parse_option",
    "recipe_from",
    "recipe_keys",
    "resume",
    "selection_figure",
    "shared_recipe",
    "state_of",
    "suggest_key",
    "train",
    "train_or_resume",
    "trained_data",
]
