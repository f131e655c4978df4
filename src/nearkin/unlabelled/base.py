"""What a method without labels is, and how it is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nearkin.losses import Loss
from nearkin.losses.modifiers import NoLabels, WithUnlabelled
from nearkin.registry import Registry
from nearkin.sampling import LabelledBesideUnlabelled, PlannedSampler


@dataclass(frozen=True)
class Setting:
    """What a method may ask for when it makes its loss.

    Attributes:
        num_features: F, the size of the features that the network's head is given.
        generator: Draws first weights and proxies.
        loss: Makes the loss of the recipe, without modifiers, for so many classes.
    """

    num_features: int
    generator: torch.Generator
    loss: Callable[[int], Loss]


class Method(ABC):
    """A loss that asks for no labels, and the batches that it needs.

    Attributes:
        views: How often a sample must appear in its batch, each time transformed anew.
    """

    views: ClassVar[int] = 1

    @abstractmethod
    def term(self, setting: Setting) -> Loss:
        """The loss: called with embeddings, and with the numbers of samples in the place of labels.

        What else its ``forward`` names is handed to it: ``features``, ``teacher_features`` (of a moving
        average of the network, whose decay it has as ``teacher_decay``) and ``clusters``, those that the
        sampler found.
        """

    @abstractmethod
    def sampler(self, samples: int, *, batch_size: int, seed: int) -> PlannedSampler:
        """The batches, for one process, of so many samples; all of one size."""

    def beside(self, loss: Loss | None, setting: Setting, weight: float) -> WithUnlabelled:
        """The method beside a loss for the samples with a label, if there are any."""
        return WithUnlabelled(NoLabels() if loss is None else loss, self.term(setting), weight)

    def batches(
        self,
        labels: Tensor,
        labelled: Callable[[Tensor], PlannedSampler],
        *,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
    ) -> LabelledBesideUnlabelled:
        """Batches of samples with and without a label.

        Args:
            labels: Of all samples, ``(N,)``, -1 where it is not known.
            labelled: Makes the sampler of the samples with these labels, for one process.
            batch_size: Samples without a label in each batch; all of them where they are fewer.
            seed: Of everything random.
            rank: Which slice of each batch this process takes.
            world_size: Into how many slices a batch is cut.
        """
        known = labels >= 0
        count = int((~known).sum())
        return LabelledBesideUnlabelled(
            labels,
            labelled(labels[known]) if count < len(labels) else None,
            self.sampler(count, batch_size=min(batch_size, count), seed=seed) if count else None,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )


registry: Registry[Method] = Registry("method without labels")
register = registry.register
names = registry.names
build = registry.build
