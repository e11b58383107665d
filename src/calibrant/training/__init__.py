"""The training loop: a recipe goes in, a run folder comes out."""

from calibrant.training.default_recipes import default_recipe, named_recipes, paper_recipe
from calibrant.training.engine import TrainingDiverged, predict_again, resume, train, train_or_resume
from calibrant.training.progress import LiveBar, PlainLines, Reporter, make_reporter
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run
from calibrant.training.run_data import TorchData
from calibrant.training.settings import recipe_from

__all__ = [
    "LiveBar",
    "PlainLines",
    "Recipe",
    "Reporter",
    "Run",
    "TorchData",
    "TrainingDiverged",
    "default_recipe",
    "make_reporter",
    "named_recipes",
    "paper_recipe",
    "predict_again",
    "recipe_from",
    "resume",
    "train",
    "train_or_resume",
]
