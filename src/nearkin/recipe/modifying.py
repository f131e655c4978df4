"""From the tables of a recipe to modifiers around a loss: what each needs beside its keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearkin.data import SampleSet
from nearkin.language.guidance import LanguageSettings, guided_by_language
from nearkin.losses import LanguageGuidance, Loss
from nearkin.losses.modifiers import Distil, get
from nearkin.losses.modifiers.distil import EMA
from nearkin.model import Model
from nearkin.networks import Activations
from nearkin.observer import Observer

GIVEN = (
    "loss",
    "generator",
    "num_classes",
    "embedding_dim",
    "num_features",
    "samples",
    "observer",
    "setting",
)
"""Keywords of modifiers that a training gives, and that no recipe says."""


@dataclass(frozen=True)
class Setting:
    """What a modifier may ask for beside its own keywords, by the name of a keyword.

    Attributes:
        samples: The training samples, or what a trunk made of them.
        num_features: F, the size of the pooled features.
        embedding_dim: D.
        generator: Of the loss.
        observer: Hears what is being done.
        data_name: The data set.
        workers: Processes that read samples.
    """

    samples: SampleSet
    num_features: int
    embedding_dim: int
    generator: torch.Generator
    observer: Observer
    data_name: str = ""
    workers: int = 0

    @property
    def num_classes(self) -> int:
        """C."""
        return self.samples.num_classes

    def pictures(self) -> SampleSet:
        """The samples themselves, whatever a trunk made of them."""
        if not isinstance(self.samples.samples, Activations):
            return self.samples
        return SampleSet(self.samples.samples.samples, self.samples.labels, self.samples.class_names)


def maker(name: str) -> Callable[..., Loss]:
    """What makes a modifier from the words of a recipe: the registered class, or what knows the words."""
    return _FROM_WORDS.get(name) or get(name)


def modified(name: str, loss: Loss, keywords: Mapping[str, Any], setting: Setting | None) -> Loss:
    """A modifier around a loss.

    Args:
        name: Of the modifier.
        loss: The loss inside.
        keywords: What the recipe says.
        setting: Of the training; without one, an example is made, to check the keywords.

    Raises:
        ValueError: A keyword is missing or has a wrong value, or the loss cannot take the modifier.
    """
    make = maker(name)
    known = inspect.signature(make).parameters
    if setting is None:
        example = {"num_classes": 2, "num_features": 2}
        given: dict[str, Any] = {key: value for key, value in example.items() if key in known}
        if "embedding_dim" in known and known["embedding_dim"].default is inspect.Parameter.empty:
            given["embedding_dim"] = 2
        if {"samples", "observer"} & set(known):  # nothing can be said without the data
            return loss
    else:
        given = {key: getattr(setting, key) for key in GIVEN if key in known and hasattr(setting, key)}
    if "setting" in known:
        given["setting"] = setting
    needed = [
        key
        for key, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    for key in needed:
        if key not in {"loss", *given, *keywords}:
            raise ValueError(f"needs the keyword {key}")
    return make(loss, **given, **keywords)


def _language(
    loss: Loss,
    setting: Setting | None,
    *,
    weight: float = 7.5,
    shift: float = 1.0,
    encoder: str = "minilm",
    prompt: str = "a photo of a {}",
    pseudo_labels: bool = False,
    names_per_class: int = 5,
    classifier: str = "timm:resnet50",
    classifier_weights: str = "imagenet",
    form: str = "paper",
) -> Loss:
    """What a language model knows about class names, beside any loss; see :class:`LanguageSettings`."""
    if names_per_class < 1:
        raise ValueError(f"names_per_class={names_per_class} must be at least 1")
    if setting is None:
        return LanguageGuidance(
            loss, ["name"], torch.ones(1, 1), weight, shift=shift, prompt=prompt, form=form
        )
    settings = LanguageSettings(
        weight, shift, encoder, prompt, pseudo_labels, names_per_class, classifier, classifier_weights, form
    )
    return guided_by_language(
        settings,
        loss,
        setting.samples,
        setting.observer,
        data_name=setting.data_name,
        workers=setting.workers,
    )


def _distil(
    loss: Loss,
    setting: Setting | None,
    *,
    teacher: str = EMA,
    weight: float = 0.1,
    sigma: float = 1.0,
    margin: float = 1.0,
    decay: float = 0.999,
) -> Loss:
    """A teacher beside any loss: "ema", or the folder of a trained model; see :class:`Distil`."""
    keywords = {"sigma": sigma, "margin": margin, "decay": decay}
    if teacher == EMA or setting is None:
        return Distil(loss, EMA, weight, **keywords)
    model = read_teacher(teacher)
    setting.observer.stage(f"embedding {len(setting.samples):,} samples with the teacher {teacher}")
    embeddings = model.embed(setting.pictures(), progress=setting.observer.progress)
    return Distil(loss, embeddings, weight, **keywords)


def read_teacher(path: str) -> Model:
    """The model in a folder.

    Raises:
        ValueError: There is none.
    """
    try:
        return Model.read(Path(path))
    except ValueError as error:
        raise ValueError(
            f"loss.distil.teacher={path!r} is neither {EMA!r} nor the folder of a trained model: {error}"
        ) from None


_FROM_WORDS: dict[str, Callable[..., Loss]] = {"language": _language, "distil": _distil}
