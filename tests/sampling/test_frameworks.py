"""Samplers as ``batch_sampler`` of other people's training loops.

Lightning is not installed here; what it does to a batch sampler, as its source says, is done by hand.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from nearkin import sampling
from nearkin.sampling import base
from nearkin.sampling.base import registry

LABELS = torch.arange(60) % 6
NAMES = sampling.names()


def build(name, **keywords):
    return sampling.build(name, LABELS, **keywords_of(name) | keywords)


def keywords_of(name):
    keywords = {"batch_size": 12, "seed": 7}
    return keywords | ({"images_per_class": 3} if "images_per_class" in registry.keywords(name) else {})


@pytest.mark.parametrize("name", NAMES)
class TestLightning:
    def test_it_is_taken_for_a_batch_sampler(self, name):
        sampler = build(name)
        assert isinstance(sampler, BatchSampler)
        assert type(sampler) is not BatchSampler
        assert sampler.batch_size == 12
        assert sampler.drop_last is False

    def test_a_sampler_made_in_train_dataloader_is_made_again_with_the_rank(self, name):
        """It notes the constructor's arguments and replaces the one that is called ``sampler``."""
        original = build(name)
        assert inspect.signature(type(original)).parameters["sampler"].default is None
        ranks = [
            type(original)(
                LABELS, **keywords_of(name), sampler=DistributedSampler(LABELS, num_replicas=2, rank=rank)
            )
            for rank in range(2)
        ]
        assert [(sampler.rank, sampler.world_size) for sampler in ranks] == [(0, 2), (1, 2)]
        together = [first + second for first, second in zip(*ranks, strict=True)]
        assert together == [batch for batch in original if len(batch) > 1]

    def test_a_sampler_made_elsewhere_is_refused_with_the_remedy(self, name):
        """It then calls the class with its own sampler in the first place."""
        original = build(name)
        inner = DistributedSampler(LABELS, num_replicas=2, rank=0)
        with pytest.raises(
            TypeError, match=r"needs the labels .* got a DistributedSampler: .*_sampler=False"
        ):
            type(original)(inner, batch_size=original.batch_size, drop_last=original.drop_last)

    def test_set_epoch_reaches_it(self, name):
        """It calls the method of ``loader.sampler`` and of ``loader.batch_sampler.sampler``."""
        loader = DataLoader(LABELS, batch_sampler=build(name))
        loader.batch_sampler.sampler.set_epoch(5)
        expected = build(name)
        expected.set_epoch(5)
        assert list(loader.batch_sampler) == list(expected)

    def test_it_can_be_made_again_from_its_attributes(self, name):
        original = build(name, rank=1, world_size=2)
        names = inspect.signature(type(original)).parameters
        again = type(original)(**{argument: getattr(original, argument) for argument in names})
        assert list(again) == list(original)
        assert (again.rank, again.world_size) == (1, 2)

    def test_without_rank_it_asks_torch_distributed(self, name, monkeypatch):
        sampler = build(name, rank=None, world_size=None)
        assert (sampler.rank, sampler.world_size) == (0, 1)
        assert list(sampler) == list(build(name))
        monkeypatch.setattr(base.dist, "is_initialized", lambda: True)
        monkeypatch.setattr(base.dist, "get_rank", lambda: 2)
        monkeypatch.setattr(base.dist, "get_world_size", lambda: 3)
        sampler.set_epoch(0)
        assert list(sampler) == list(build(name, rank=2, world_size=3))
        monkeypatch.setattr(base.dist, "get_world_size", lambda: 7)
        with pytest.raises(ValueError, match="batch_size=12 .* not a multiple of world_size=7"):
            list(sampler)


def test_a_sampler_of_other_things_is_no_help():
    with pytest.raises(ValueError, match="sampler=SequentialSampler must be a DistributedSampler"):
        build("balanced", sampler=SequentialSampler(LABELS))


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_divides_the_batches_of_a_single_process(name):
    """With ``split_batches``, each process gets its slice of each batch; a new plan in every pass."""
    loaders = [
        prepare_data_loader(
            DataLoader(torch.arange(60), batch_sampler=build(name)),
            num_processes=2,
            process_index=rank,
            split_batches=True,
            put_on_device=False,
        )
        for rank in range(2)
    ]
    single = build(name)
    for _ in range(2):
        passes = [[batch.tolist() for batch in loader] for loader in loaders]
        together = [first + second for first, second in zip(*passes, strict=True)]
        assert together == [batch for batch in single if len(batch) == 12]
