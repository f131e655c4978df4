"""What is chosen, and what is refused, where pairs of the samples are known instead of classes."""

from __future__ import annotations

from typing import Any

from nearkin.data import DataSet, KnownPairs, SampleSet
from nearkin.losses.base import Loss
from nearkin.losses.modifiers import OfPairs
from nearkin.protocols import chooses_on_test
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.recipe import Recipe

_LOSS = "contrastive"
_FEWEST = 2  # pairs of a kind, to score
_MODIFIERS = frozenset({"matryoshka", "vicreg"})  # they hand the batch on as it is


def of_known_pairs(loss: Loss, samples: SampleSet) -> Loss:
    """A loss for samples: where only pairs of them are known, it is given those in the place of labels."""
    known = samples.pairs
    return loss if known is None or known.are_classes else OfPairs(loss, known.among)


def refuse_too_few_pairs(known: KnownPairs) -> None:
    """Say where the pairs of the validation part are too few to choose by.

    Raises:
        RecipeError: They are.
    """
    same = known.scored()[1]
    matching, differing = int(same.sum()), int((~same).sum())
    if min(matching, differing) < _FEWEST:
        raise RecipeError(
            f"{matching} validation pairs are the same and {differing} different, and {_FEWEST} of each are "
            "needed: hold out others (another seed, a larger share), or choose protocol.name=standard"
        )


def choices_for_pairs(recipe: Recipe, data_set: DataSet) -> dict[str, tuple[Any, str]]:
    """Settings that fit data of pairs, where a recipe leaves them open; each with its reason."""
    known = data_set.train.pairs
    if known is None:
        return {}
    found: dict[str, tuple[Any, str]] = {}
    if not chooses_on_test(recipe.protocol.name):
        found["evaluation.select"] = "roc_auc", "pairs are known, and choose the epoch"
    if not known.are_classes:
        found["loss.name"] = _LOSS, "pairs are known, no classes, and it learns from each pair by itself"
        found["sampler.name"] = "pairs", "of a batch drawn otherwise, little would be known"
    return {key: choice for key, choice in found.items() if not _said(recipe, key)}


def _said(recipe: Recipe, key: str) -> bool:
    table, _, name = key.partition(".")
    said = recipe.said.get(table, {})
    return isinstance(said, str) or name in said


def refuse_for_pairs(recipe: Recipe, data_set: DataSet) -> None:
    """Say what data of pairs cannot be used with, and what only it can.

    Raises:
        RecipeError: The recipe asks for it.
    """
    known = data_set.train.pairs
    if known is None:
        if recipe.evaluation.select == "roc_auc":
            raise RecipeError("evaluation.select=roc_auc is for data of pairs: choose recall or map_at_r")
        return
    if recipe.unlabelled.name is not None:
        raise RecipeError("[unlabelled] is for samples without a label, and of these samples pairs are known")
    refused = [str(one.name) for one in recipe.loss.modifiers if one.name not in _MODIFIERS]
    if refused and not known.are_classes:
        raise RecipeError(
            f"[loss.{refused[0]}] needs classes, and only pairs of the samples are known: leave it away, or "
            "say data.others=different, which makes a class of every group of matches"
        )
