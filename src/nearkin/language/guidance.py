"""Language guidance as a recipe asks for it: names of the classes, a language model, and the loss around."""

from __future__ import annotations

import torch

from nearkin.data import SampleSet
from nearkin.language.pseudo_labels import pseudo_class_names
from nearkin.language.spoken_names import spoken_class_names
from nearkin.language.text import text_encoder
from nearkin.losses import LanguageGuidance, Loss
from nearkin.networks import Activations
from nearkin.observer import Observer
from nearkin.recipe.recipe import LanguageRecipe, Recipe


def guided_by_language(recipe: Recipe, loss: Loss, images: SampleSet, observer: Observer) -> Loss:
    """The loss with the recipe's language guidance around it, or the loss if there is none.

    Args:
        recipe: Of the run.
        loss: Any loss.
        images: The classes to learn from; images, or what a trunk made of them.
        observer: Hears what is being done.
    """
    settings = recipe.loss.language
    if settings is None:
        return loss
    if settings.pseudo_labels:
        observer.stage(f"naming {images.num_classes} classes with {settings.classifier}")
        names: list[str] | list[list[str]] = _pseudo_class_names(settings, images, recipe.data.workers)
    else:
        names = spoken_class_names(recipe.data.name, images.class_names)
    observer.stage(f"reading class names with {settings.encoder}")
    return LanguageGuidance(
        loss,
        names,
        text_encoder(settings.encoder),
        weight=settings.weight,
        shift=settings.shift,
        prompt=settings.prompt,
    )


def _pseudo_class_names(settings: LanguageRecipe, images: SampleSet, workers: int) -> list[list[str]]:
    if isinstance(images.samples, Activations):  # which show a classifier nothing: it needs the pictures
        images = SampleSet(images.samples.samples, images.labels, images.class_names)
    return pseudo_class_names(
        images,
        classifier=settings.classifier,
        weights=settings.classifier_weights,
        names_per_class=settings.names_per_class,
        device="cuda" if torch.cuda.is_available() else "cpu",
        workers=workers,
    )
