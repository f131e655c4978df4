"""A random class and the classes most similar to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import Sampler

from nearkin.sampling.balanced import BalancedSampler
from nearkin.sampling.base import registry

_SEEDS_AT_ONCE = 64  # rows of similarities per matrix product: 3 MB for 11,318 classes


@registry.register("hard_classes")
class HardClassesSampler(BalancedSampler):
    """A random class and the P - 1 classes most similar to it, K images of each.

    Classes that are hard to tell apart meet in one batch, as in the hard negative class mining of Sohn
    (NeurIPS 2016). How similar two classes are is the cosine between their vectors: their
    proxies (``set_class_vectors``), or the means of their images' normalised embeddings (``refresh``). Before
    either was given, batches are those of ``balanced``.

    The epoch starts from the groups of ``balanced``, with its promises and exceptions: every image once, no
    class twice in a batch. A batch takes a random group that is left, then one group of each of the classes
    most similar to it that have any left; mixed batches grow in the same way from the short groups. So the
    hardest batches are planned first and the last ones take what remains; they come in random order. A class
    with as many groups left as there are batches to plan must join each of them, near or not.

    Use it with many fine-grained classes, where a random batch is too easy. It asks for more exact labels
    than ``balanced``: two names for one class will meet in every batch.

    Args:
        labels: The class of every image, integers, ``(N,)``.
        batch_size: P · K, over all ranks.
        images_per_class: K.
        drop_short: Leave out the images that do not fill a group of K.
        refresh_every: Every how many epochs ``needs_embeddings`` asks for new embeddings.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> sampler = HardClassesSampler([0, 0, 1, 1, 2, 2, 3, 3], batch_size=4, images_per_class=2)
    >>> sampler.set_class_vectors(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]))
    >>> sorted(sampler.labels[batch].unique().tolist() for batch in sampler.plan(epoch=0))
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        images_per_class: int = 5,
        drop_short: bool = False,
        refresh_every: int = 1,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
    ) -> None:
        super().__init__(
            labels,
            batch_size=batch_size,
            images_per_class=images_per_class,
            drop_short=drop_short,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
        if refresh_every < 1:
            raise ValueError(f"refresh_every={refresh_every} must be at least 1")
        self.refresh_every = refresh_every
        self._class_vectors: Tensor | None = None

    def needs_embeddings(self, epoch: int) -> bool:
        """Whether ``refresh``, or ``set_class_vectors`` in its place, should be called before this epoch."""
        return epoch % self.refresh_every == 0

    def refresh(self, embeddings: Tensor) -> None:
        """Take the mean of each class's normalised embeddings as its vector, from those of all images."""
        unit = self._checked_embeddings(embeddings).cpu()
        sums = unit.new_zeros(len(self._class_sizes), unit.shape[1]).index_add_(0, self._classes.long(), unit)
        self.set_class_vectors(sums)

    def set_class_vectors(self, vectors: Tensor) -> None:
        """Take one vector per class, ``(C, D)``, or several, ``(C, M, D)``, in the ascending order of labels.

        Of several vectors the mean of the normalised ones counts. Proxies of a loss fit as they are.
        """
        if vectors.ndim not in (2, 3):
            raise ValueError(f"class vectors must be (C, D) or (C, M, D), not {tuple(vectors.shape)}")
        self._check_one_per_class(vectors)
        vectors = vectors.detach().float().cpu()
        if vectors.ndim == 3:
            vectors = normalize(vectors, dim=2).mean(dim=1)
        self._class_vectors = normalize(vectors, dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """The class vectors, where they were given."""
        return {} if self._class_vectors is None else {"class_vectors": self._class_vectors}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back the class vectors that ``tensors`` gave."""
        vectors = tensors.get("class_vectors")
        if vectors is not None:
            self._check_one_per_class(vectors)
        self._class_vectors = vectors  # to the last bit, so that a resumed epoch has the same plan

    def _check_one_per_class(self, vectors: Tensor) -> None:
        if len(vectors) != (classes := len(self._class_sizes)):
            raise ValueError(f"{len(vectors)} class vectors for {classes} classes among the labels")

    def _compose(self, group_class: Tensor, group_images: Tensor, generator: torch.Generator) -> Tensor:
        if self._class_vectors is None:
            return super()._compose(group_class, group_images, generator)
        groups = group_class.bincount(minlength=len(self._class_sizes))
        ends = groups.cumsum(0)
        left = groups.clone()
        seeds = group_class[torch.randperm(len(group_class), generator=generator)]
        batches = torch.empty(self._regular_batches, self.classes_per_batch, dtype=torch.long)
        for number, (seed, similarity) in enumerate(self._similarities(seeds, left)):
            similarity[left == 0] = -torch.inf
            similarity[left == len(batches) - number] = torch.inf
            similarity[seed] = torch.inf
            classes = similarity.topk(self.classes_per_batch).indices
            batches[number] = ends[classes] - left[classes]
            left[classes] -= 1
        return batches

    def _order_short_groups(self, classes: Tensor, images_before: int, images: Tensor) -> Tensor:
        if self._class_vectors is None:
            return classes
        left = torch.zeros_like(self._short_sizes)
        left[classes] = self._short_sizes[classes]
        room = self.batch_size - images_before % self.batch_size
        order = []
        for seed, similarity in self._similarities(classes, left):
            similarity[left == 0] = -torch.inf
            similarity[seed] = torch.inf
            nearest = similarity.topk(min(room, int((left > 0).sum()))).indices
            filled = left[nearest].cumsum(0)
            needed = int((filled < room).sum()) + 1
            order.append(nearest[:needed])
            cut_off = int(filled[:needed][-1]) - room  # of the last class, for the next batch to begin with
            room = self.batch_size - max(cut_off, 0)
            left[nearest[:needed]] = 0
        return torch.cat(order) if order else classes

    def _similarities(self, seeds: Tensor, left: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each seed class that has anything left when its turn comes, and its similarity to all classes."""
        assert self._class_vectors is not None
        for block in seeds.split(_SEEDS_AT_ONCE):
            alive = block[left[block] > 0]
            similarities = self._class_vectors[alive] @ self._class_vectors.T
            for seed, similarity in zip(alive.tolist(), similarities, strict=True):
                if left[seed] > 0:
                    yield seed, similarity
