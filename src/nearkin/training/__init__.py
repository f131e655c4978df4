"""One run: a recipe in, a trained network out, resumable at any moment."""

from nearkin.training.engine import Scorer, Trained, TrainingError, build_network, load_network, train
from nearkin.training.observer import Observer
from nearkin.training.recipe import Recipe, RecipeError
from nearkin.training.run import Run, RunError

__all__ = [
    "Observer",
    "Recipe",
    "RecipeError",
    "Run",
    "RunError",
    "Scorer",
    "Trained",
    "TrainingError",
    "build_network",
    "load_network",
    "train",
]
