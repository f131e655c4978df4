"""Proxies in half precision and in a file."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.training.lazy_optimizers import AdamW

SIZES = {"num_classes": 50, "embedding_dim": 4}
LABELS = torch.tensor([3, 3, 17, 49, 0])


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(len(LABELS), 4, generator=torch.Generator().manual_seed(seed))


def trained(**keywords) -> losses.ProxyLoss:
    loss = losses.build("arcface", sample=0.3, **SIZES, **keywords)
    optimizer = AdamW(loss.parameters(), lr=0.05, eps=0.1)
    for seed in range(6):
        optimizer.zero_grad()
        loss(batch(seed), LABELS).backward()
        optimizer.step()
    return loss


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_half_precision(storage):
    loss = losses.build("arcface", storage=storage, **SIZES)
    assert loss.proxies.dtype == getattr(torch, storage)
    value = loss(batch(), LABELS)
    assert value.dtype == torch.float32
    whole = losses.build("arcface", **SIZES)
    whole.proxies.data = loss.proxies.detach().float()
    assert torch.equal(value, whole(batch(), LABELS))
    half, single = trained(storage=storage).proxies, trained().proxies
    assert (half.float() - single).norm() <= 0.1 * single.norm()


def test_a_file_changes_nothing_and_leaves_nothing(tmp_path):
    folder = tmp_path / "somewhere" / "else"
    mapped, plain = trained(memory_map=folder), trained()
    assert torch.equal(mapped.proxies, plain.proxies)
    assert list(folder.iterdir()) == []
    restored = losses.build("arcface", sample=0.3, memory_map=folder, **SIZES)
    restored.load_state_dict(mapped.state_dict())
    assert torch.equal(restored.proxies, plain.proxies)
    assert torch.equal(restored(batch(), LABELS), plain(batch(), LABELS))


def test_two_files_in_one_folder_are_two(tmp_path):
    one, other = (losses.build("softmax", memory_map=tmp_path, **SIZES) for _ in range(2))
    one.proxies.data.zero_()
    assert other.proxies.any()


def test_wrong_words_are_refused():
    with pytest.raises(ValueError, match="storage='int8' must be one of: float32, bfloat16, float16"):
        losses.build("softmax", storage="int8", **SIZES)
    with pytest.raises(ValueError, match="tile=0"):
        losses.build("softmax", tile=0, **SIZES)
    with pytest.raises(ValueError, match="storage=float16: loss 'triplet' has no proxies, which storage is"):
        losses.build("triplet", storage="float16")
