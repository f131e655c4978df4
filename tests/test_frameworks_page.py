"""What docs/frameworks.md says of several processes, and of Lightning, which is not installed here."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from process_groups import found_together
from torch import nn
from torch.utils.data import BatchSampler, DistributedSampler

from nearkin.sampling import BalancedSampler
from test_documents import python_blocks

BLOCKS = python_blocks("docs/frameworks.md")


def block(marker: str) -> str:
    (found,) = (code for code in BLOCKS if marker in code)
    return found


def printed(code: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
    return out.getvalue()


def in_a_process(_: int, code: str) -> str:
    """As ``torchrun`` would start it, but for the group, which is there already."""
    os.environ["RANK"] = "as torchrun says"
    torch.distributed.init_process_group = lambda backend: None
    torch.distributed.destroy_process_group = lambda: None
    return printed(code)


def test_two_processes_under_ddp_end_where_one_does(tmp_path):
    code = block("DistributedDataParallel(network)")
    alone = printed(code)
    assert alone.startswith("loss ")
    assert found_together(in_a_process, 2, tmp_path, code) == [alone] * 2


@pytest.fixture
def lightning(monkeypatch):
    """A stand-in that treats loaders and batch samplers as Lightning's source does, in each of two ranks."""
    seen = SimpleNamespace(samplers=[], losses=[])

    class Trainer:
        def __init__(self, **keywords):
            assert keywords["max_epochs"] == 1

        def fit(self, model):
            optimizer = model.configure_optimizers()
            for rank in range(2):
                loader, saved = made_with_saved_arguments(model.train_dataloader)
                saved["sampler"] = DistributedSampler(loader.dataset, num_replicas=2, rank=rank)
                sampler = type(loader.batch_sampler)(**saved)
                seen.samplers.append(sampler)
                for indices in sampler:
                    value = model.training_step(loader.dataset[indices], 0)
                    optimizer.zero_grad()
                    value.backward()
                    optimizer.step()
                    seen.losses.append(value.item())

    module = ModuleType("lightning")
    module.LightningModule, module.Trainer = nn.Module, Trainer
    monkeypatch.setitem(sys.modules, "lightning", module)
    return seen


def made_with_saved_arguments(make_loader):
    """The loader, and what its batch sampler's constructor was called with."""
    saved = {}
    original = BalancedSampler.__init__

    def noting(self, labels, **keywords):
        saved.update(keywords, labels=labels)
        original(self, labels, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BalancedSampler, "__init__", noting)
        loader = make_loader()
    assert isinstance(loader.batch_sampler, BatchSampler)
    return loader, saved


def test_the_lightning_example_divides_batches_among_ranks(lightning):
    exec(compile(block("import lightning"), "docs/frameworks.md", "exec"), {"__name__": "docs"})
    first, second = lightning.samplers
    assert (first.rank, second.rank, first.world_size, second.world_size) == (0, 1, 2, 2)
    for sampler in lightning.samplers:
        sampler.set_epoch(0)
    whole = [torch.tensor(one + other) for one, other in zip(first, second, strict=True)]
    assert sorted(torch.cat(whole).tolist()) == list(range(160))
    assert all(value > 0 for value in lightning.losses)
