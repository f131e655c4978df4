"""Language guidance beside a loss: names of the classes, a language model, and the loss around."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nearkin.data import SampleSet
from nearkin.language.pseudo_labels import pseudo_class_names
from nearkin.language.spoken_names import spoken_class_names
from nearkin.language.text import text_encoder
from nearkin.losses import LanguageGuidance, Loss
from nearkin.networks import Activations
from nearkin.observer import Observer


@dataclass(frozen=True)
class LanguageSettings:
    """What a language model knows about class names, beside any loss.

    Attributes:
        weight: The weight of the guidance.
        shift: Added to similarities in language.
        encoder: ``minilm``, a text model's name on the Hugging Face Hub, or its folder.
        prompt: What the model reads about a class, whose name takes the place of ``{}``.
        pseudo_labels: Name classes by what an ImageNet classifier sees in them, not by their own names.
        names_per_class: How many such names a class gets.
        classifier: The classifier, as ``timm:NAME``.
        classifier_weights: ``imagenet``, or a file.
        form: ``paper``, or ``survey`` for its equation (29) as printed.
    """

    weight: float = 7.5
    shift: float = 1.0
    encoder: str = "minilm"
    prompt: str = "a photo of a {}"
    pseudo_labels: bool = False
    names_per_class: int = 5
    classifier: str = "timm:resnet50"
    classifier_weights: str = "imagenet"
    form: str = "paper"


def guided_by_language(
    settings: LanguageSettings,
    loss: Loss,
    samples: SampleSet,
    observer: Observer,
    *,
    data_name: str = "",
    workers: int = 0,
) -> Loss:
    """The loss with language guidance around it.

    Args:
        settings: The settings of the guidance.
        loss: Any loss.
        samples: The classes to learn from; samples, or what a trunk made of them.
        observer: Hears what is being done.
        data_name: The data set, whose class names may need to be made readable.
        workers: Processes that read samples.
    """
    if settings.pseudo_labels:
        observer.stage(f"naming {samples.num_classes} classes with {settings.classifier}")
        names: list[str] | list[list[str]] = _pseudo_class_names(settings, samples, workers)
    else:
        names = spoken_class_names(data_name, samples.class_names)
    observer.stage(f"reading class names with {settings.encoder}")
    return LanguageGuidance(
        loss,
        names,
        text_encoder(settings.encoder),
        weight=settings.weight,
        shift=settings.shift,
        prompt=settings.prompt,
        form=settings.form,
    )


def _pseudo_class_names(settings: LanguageSettings, samples: SampleSet, workers: int) -> list[list[str]]:
    if isinstance(samples.samples, Activations):  # which show a classifier nothing: it needs the pictures
        samples = SampleSet(samples.samples.samples, samples.labels, samples.class_names)
    return pseudo_class_names(
        samples,
        classifier=settings.classifier,
        weights=settings.classifier_weights,
        names_per_class=settings.names_per_class,
        device="cuda" if torch.cuda.is_available() else "cpu",
        workers=workers,
    )
