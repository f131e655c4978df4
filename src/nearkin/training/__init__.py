"""One run: a recipe in, a trained network out, resumable at any moment."""

from nearkin.observer import Observer
from nearkin.recipe.recipe import Recipe, RecipeError
from nearkin.training.building import build_network, load_network
from nearkin.training.engine import Scorer, Trained, TrainingError, train
from nearkin.training.gradient_caching import backward_in_chunks
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
    "backward_in_chunks",
    "build_network",
    "load_network",
    "train",
]
