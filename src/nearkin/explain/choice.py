"""A loss as a person writes it on one line: ``triplet:margin=0.3,mining=all``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from nearkin import losses
from nearkin.losses import Loss

_IN_A_PICTURE: dict[str, dict[str, Any]] = {
    "soft_triple": {"proxies_per_class": 2},
    "proxy_gml": {"proxies_per_class": 2, "ratio": 1.0},
}
"""Ten proxies of a class cannot be told apart in a picture, and of two or three classes a sample must see
more than a twentieth."""


@dataclass(frozen=True)
class LossChoice:
    """A loss and the hyperparameters that differ from its defaults.

    Attributes:
        name: One of ``nearkin.losses.names()``.
        hyperparameters: Keywords of the loss.
    """

    name: str
    hyperparameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> LossChoice:
        """Read ``name`` or ``name:keyword=value,keyword=value``.

        >>> LossChoice.parse("triplet:margin=0.3,mining=all")
        LossChoice(name='triplet', hyperparameters={'margin': 0.3, 'mining': 'all'})
        >>> LossChoice.parse("triplet:0.3")
        Traceback (most recent call last):
        ValueError: 'triplet:0.3': after the colon come keyword=value, separated by commas
        """
        name, _, settings = text.partition(":")
        hyperparameters = dict(_IN_A_PICTURE.get(name, {}))
        for setting in filter(None, settings.split(",")):
            keyword, equals, value = setting.partition("=")
            if not equals:
                raise ValueError(f"{text!r}: after the colon come keyword=value, separated by commas")
            hyperparameters[keyword.strip()] = _value(value.strip())
        return cls(name, hyperparameters)

    def build(self, num_classes: int, embedding_dim: int) -> Loss:
        """The loss."""
        return losses.build(
            self.name, num_classes=num_classes, embedding_dim=embedding_dim, **self.hyperparameters
        )

    @property
    def settings(self) -> str:
        """What differs from the defaults, in words.

        >>> LossChoice("triplet", {"margin": 0.3}).settings
        'margin 0.3'
        """
        words = (f"{keyword} {value}" for keyword, value in self.hyperparameters.items())
        return ", ".join(words).replace("_", " ")


def _value(text: str) -> Any:
    """A number or a truth value where it reads as one, otherwise the word itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def every_loss() -> list[LossChoice]:
    """All registered losses, those without proxies first."""
    choices = [LossChoice.parse(name) for name in losses.names()]
    return sorted(choices, key=lambda choice: losses.describe(choice.name).needs_classes)
