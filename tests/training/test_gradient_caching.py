from __future__ import annotations

import json

import pytest
import torch
from running import execute, new_run
from torch import nn

from nearkin import losses, networks
from nearkin.recipe import Recipe
from nearkin.training.gradient_caching import backward_in_chunks, refuse_trained_batch_norm

CLASSES = 128


def convnet(*, dropout: float = 0.0) -> networks.EmbeddingNetwork:
    network = networks.build("convnet", size=16, width=8, embedding_dim=32, seed=0)
    networks.freeze_batch_norm(network)
    network.backbone.append(nn.Dropout(dropout))
    return network.train()


def batch(size: int, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(size, 1, side, side, generator=torch.Generator().manual_seed(1))
    return images, torch.arange(size) % CLASSES


def build_loss(name: str) -> losses.Loss:
    return losses.build(
        name, num_classes=CLASSES, embedding_dim=32, generator=torch.Generator().manual_seed(2)
    )


def gradients(*modules: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad
        for module in modules
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        assert (found[name] - gradient).abs().max() < 1e-5 * max(1, gradient.abs().max()), name


@pytest.mark.parametrize("name", ["multi_similarity", "triplet", "margin", "proxy_anchor"])
def test_1024_images_in_chunks_of_64_give_the_gradient_of_the_batch(name):
    images, labels = batch(1024)
    results = []
    for chunk in (None, 64):
        network, loss = convnet(), build_loss(name)
        value = backward_in_chunks(network, images, lambda z, loss=loss: loss(z, labels), chunk=chunk)
        results.append((value, gradients(network, loss)))
    (whole, expected), (chunked, found) = results
    assert chunked == pytest.approx(whole.item(), rel=1e-6)
    assert len(expected) == 6 + (name in {"margin", "proxy_anchor"})
    assert_same(found, expected)


def test_the_last_chunk_may_be_small():
    images, labels = batch(100)
    loss = losses.build("contrastive")
    results = []
    for chunk in (None, 33):
        network = convnet()
        backward_in_chunks(network, images, lambda z: loss(z, labels), chunk=chunk)
        results.append(gradients(network))
    assert_same(results[1], results[0])


def test_dropout_draws_the_same_in_both_passes():
    """Against the graph of all chunks at once, which autograd differentiates in one go."""
    images, labels = batch(96)
    loss = losses.build("contrastive")
    network = convnet(dropout=0.5)
    torch.manual_seed(3)
    loss(torch.cat([network(part) for part in images.split(32)]), labels).backward()
    expected, drawn_next = gradients(network), torch.rand(1)
    network = convnet(dropout=0.5)
    torch.manual_seed(3)
    backward_in_chunks(network, images, lambda z: loss(z, labels), chunk=32)
    assert torch.equal(torch.rand(1), drawn_next)
    assert_same(gradients(network), expected)


class SavedBytes:
    """The most bytes that autograd keeps for backward passes at any one time."""

    class _Kept:
        def __init__(self, tensor: torch.Tensor, meter: SavedBytes) -> None:
            self.tensor, self.meter = tensor, meter
            self.bytes = tensor.numel() * tensor.element_size()
            meter.now += self.bytes
            meter.peak = max(meter.peak, meter.now)

        def __del__(self) -> None:
            self.meter.now -= self.bytes

    def __init__(self) -> None:
        self.now = self.peak = 0

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self._Kept(tensor, self), lambda kept: kept.tensor
        )


def peak_bytes(size: int, chunk: int | None) -> int:
    images, labels = batch(size)
    network, loss = convnet(), build_loss("proxy_anchor")
    meter = SavedBytes()
    with meter.hooks():
        backward_in_chunks(network, images, lambda z: loss(z, labels), chunk=chunk)
    assert meter.now == 0
    return meter.peak


def test_memory_grows_with_the_chunk_and_not_with_the_batch():
    whole_512, whole_1024 = (peak_bytes(size, chunk=None) for size in (512, 1024))
    assert whole_1024 > 1.9 * whole_512
    of_512, of_1024, larger = peak_bytes(512, 64), peak_bytes(1024, 64), peak_bytes(1024, 128)
    assert of_1024 < 1.05 * of_512
    assert larger > 1.8 * of_1024
    assert of_1024 < whole_1024 / 14


def test_a_trained_batch_norm_is_refused():
    network = networks.build("convnet", size=16, width=4, embedding_dim=8)
    refuse_trained_batch_norm(network, None)
    with pytest.raises(ValueError, match="training.chunk=5 would change .* network.freeze_batch_norm=true"):
        refuse_trained_batch_norm(network, 5)
    networks.freeze_batch_norm(network)
    refuse_trained_batch_norm(network, 5)


def test_a_run_in_chunks_ends_where_a_run_of_whole_batches_does(small_recipe, tmp_path):
    values = small_recipe | {
        "network": small_recipe["network"] | {"freeze_batch_norm": True},
        "loss": {"name": "multi_similarity"},
        "optimizer": {"name": "sgd", "lr": 0.05},
    }
    losses_of_epochs, recalls = [], []
    for chunk in (40, 16):
        recipe = Recipe.parse(values | {"training": {"epochs": 2, "chunk": chunk}})
        run = new_run(tmp_path / str(chunk), recipe)
        execute(run)
        losses_of_epochs.append([row["loss"] for row in run.metrics()[1:]])
        recalls.append(json.loads(run.result_file.read_text())["test"]["recall_at_1"])
    assert losses_of_epochs[1] == pytest.approx(losses_of_epochs[0], rel=1e-5)
    assert recalls[1] == pytest.approx(recalls[0], abs=0.01)


def test_accumulated_batches_make_one_step_of_their_mean(small_recipe, tmp_path):
    """Two batches of 20 of a loss that is a mean over images are one batch of 40; so are the crops."""
    common = small_recipe | {
        "network": small_recipe["network"] | {"freeze_batch_norm": True},
        "loss": {"name": "proxy_nca"},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "schedule": {"name": "cosine", "warmup": 0},
    }
    results = []
    for size, accumulate in ((40, 1), (20, 2)):
        values = common | {
            "sampler": {"batch_size": size, "drop_last": True},
            "training": {"epochs": 2, "accumulate": accumulate},
        }
        run = new_run(tmp_path / str(size), Recipe.parse(values))
        execute(run)
        results.append((run.read_network(), run.metrics()))
    (whole, whole_rows), (halves, halves_rows) = results
    assert [row["lr"] for row in halves_rows] == [row["lr"] for row in whole_rows]
    assert [r["loss"] for r in halves_rows[1:]] == pytest.approx(
        [r["loss"] for r in whole_rows[1:]], rel=1e-4
    )
    assert all(torch.allclose(halves[name], whole[name], atol=1e-5) for name in whole)
