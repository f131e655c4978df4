"""Images and their nearest neighbours in one batch, for methods that learn without labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.evaluation import nearest_neighbours
from nearkin.sampling.base import PlannedSampler, registry


@registry.register("neighbours")
class NeighboursSampler(PlannedSampler):
    """Random images, each with its nearest neighbours in the whole data set.

    Every ``refresh_every`` epochs the training loop embeds all images with the current network and calls
    ``refresh``, which lists the neighbours of every image. A batch takes an image at random, its
    ``neighbours`` nearest ones that are not in the batch yet, then the next random image that is not, until
    it is full; no image is twice in a batch. Labels play no part. An epoch has as many batches as fit into
    the number of images; since neighbours come along, an image may be in several of them, or in none.

    Kim, Kim, Cho, Kwak. Self-Taught Metric Learning without Labels. CVPR 2022. arXiv:2205.01903.

    Args:
        labels: One integer per image, ``(N,)``; only their number counts.
        batch_size: Images per batch over all ranks; all images where there are fewer.
        neighbours: How many join each random image.
        refresh_every: Every how many epochs ``needs_embeddings`` asks for new embeddings.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> sampler = NeighboursSampler([0] * 6, batch_size=2, neighbours=1)
    >>> sampler.refresh(torch.tensor([[1.0, 0], [0, 1], [-1, 0], [1, 0.1], [0.1, 1], [-1, 0.1]]))
    >>> all(batch[0] % 3 == batch[1] % 3 for batch in sampler)
    True
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        neighbours: int = 5,
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
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
        for name, value in (("neighbours", neighbours), ("refresh_every", refresh_every)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.neighbours = neighbours
        self.refresh_every = refresh_every
        self._nearest: Tensor | None = None

    @property
    def _listed(self) -> int:
        """How many neighbours are kept of each image: more than join it, since some are in the batch."""
        return min(4 * self.neighbours, len(self.labels) - 1)

    def needs_embeddings(self, epoch: int) -> bool:
        """Whether ``refresh`` should be called before this epoch."""
        return epoch % self.refresh_every == 0

    def refresh(self, embeddings: Tensor) -> None:
        """List the nearest neighbours of every image by the present embeddings of all, ``(N, D)``."""
        units = self._checked_embeddings(embeddings)
        if self._listed:
            self._nearest = nearest_neighbours(units, self._listed)[1].int().cpu()

    def tensors(self) -> dict[str, Tensor]:
        """The neighbours of every image, ``(N, k)``, where they were listed."""
        return {} if self._nearest is None else {"nearest": self._nearest}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back the list that ``tensors`` gave."""
        nearest = tensors.get("nearest")
        expected = (len(self.labels), self._listed)
        if nearest is not None and nearest.shape != expected:
            raise ValueError(f"nearest must have shape {expected}, not {tuple(nearest.shape)}")
        self._nearest = nearest

    def _planned_sizes(self) -> list[int]:
        images = len(self.labels)
        return [self.batch_size] * (images // self.batch_size) or [images]

    def _planned(self, generator: torch.Generator) -> Tensor:
        if self._nearest is None:
            return torch.randperm(len(self.labels), generator=generator)[: sum(self._planned_sizes())]
        nearest, drawn = self._nearest.tolist(), self._drawn(generator)
        planned: list[int] = []
        for size in self._planned_sizes():
            batch: dict[int, None] = {}  # a set that keeps its order
            while len(batch) < size:
                image = next(one for one in drawn if one not in batch)
                near = [other for other in nearest[image] if other not in batch][: self.neighbours]
                batch |= dict.fromkeys([image, *near][: size - len(batch)])
            planned += batch
        return torch.tensor(planned)

    def _drawn(self, generator: torch.Generator) -> Iterator[int]:
        """All images at random, then all of them once more, without an end."""
        while True:
            yield from torch.randperm(len(self.labels), generator=generator).tolist()
