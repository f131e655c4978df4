"""Classes divided among processes, against one process that has all of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from process_groups import found_together
from torch import Tensor, nn

from nearkin import losses
from nearkin.distributed import gather
from nearkin.losses.sampled_classes import draw_classes, step_generator
from nearkin.training.lazy_optimizers import AdamW

C, D, ROWS = 23, 6, 8
LABELS = torch.tensor([3, 3, 17, 22, 0, 17, 12, 3])
CASES = {
    "softmax": {"normalized": True},
    "proxy_nca": {},
    "proxy_nca_pp": {},
    "arcface": {},
    "cosface": {},
    "sub_center_arcface": {},
    "curricularface": {},
    "adaface": {},
    "soft_triple": {"proxies_per_class": 3},
    "proxy_anchor": {},
    "proxy_gml": {"proxies_per_class": 3, "ratio": 0.2, "regularization": 0.0},
}


def points() -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(3))


def network_and_loss(name: str, **keywords) -> tuple[nn.Module, losses.ProxyLoss]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, D))
    generator = torch.Generator().manual_seed(1)
    loss = losses.build(name, num_classes=C, embedding_dim=D, generator=generator, **CASES[name], **keywords)
    return network, loss


def optimizer_of(network: nn.Module, loss: nn.Module) -> AdamW:
    return AdamW([{"params": [*network.parameters()]}, {"params": [*loss.parameters()], "lr": 0.1}], lr=0.01)


def trained_by_one(name: str) -> tuple[list[float], nn.Module, losses.ProxyLoss]:
    network, loss = network_and_loss(name)
    optimizer, values = optimizer_of(network, loss), []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(network(points()), LABELS)
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values, network, loss


def trained_together(name: str, rank: int, count: int) -> dict[str, list[Tensor] | list[float]]:
    network, loss = network_and_loss(name)
    loss.shard(rank, count)
    optimizer, values = optimizer_of(network, loss), []
    own = slice(ROWS * rank // count, ROWS * (rank + 1) // count)
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(gather(network(points()[own]), gradients="summed"), gather(LABELS[own]))
        value.backward()
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        values.append(value.item())
    return {
        "values": values,
        "network": [one.detach() for one in network.parameters()],
        "proxies": [loss.proxies.detach()],
        "buffers": [*loss.buffers()],
    }


def sampled(rank: int, count: int) -> dict[str, list[Tensor]]:
    """One step of sampled classes, of which each process draws from its own."""
    _, loss = network_and_loss("arcface", sample=0.3)
    loss.shard(rank, count)
    seed, step = loss.draws.tolist()
    own = LABELS - C * rank // count
    size = len(loss.proxies)
    own = torch.where((own >= 0) & (own < size), own, -1)
    chosen = draw_classes(own, size, 0.3, step_generator(seed, step)) + C * rank // count
    x = torch.randn(ROWS, D, generator=torch.Generator().manual_seed(4)).requires_grad_()
    value = loss(x, LABELS)
    value.backward()
    return {
        "chosen": [chosen],
        "value": [value.detach()],
        "x": [x.grad],
        "proxies": [loss.proxies.grad.to_dense()],
    }


def work(rank: int, count: int) -> dict:
    return {name: trained_together(name, rank, count) for name in CASES} | {"sampled": sampled(rank, count)}


@pytest.fixture(scope="module", params=[2, 4])
def run(request, tmp_path_factory) -> list[dict]:
    """What each process found."""
    return found_together(work, request.param, tmp_path_factory.mktemp("processes"), request.param)


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_one_process(run, name):
    values, network, loss = trained_by_one(name)
    for found in run:
        assert found[name]["values"] == pytest.approx(values, abs=1e-5, rel=1e-5)
        for ours, wanted in zip(found[name]["network"], network.parameters(), strict=True):
            torch.testing.assert_close(ours, wanted.detach(), rtol=1e-5, atol=1e-5)
        for ours, wanted in zip(found[name]["buffers"], loss.buffers(), strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    together = torch.cat([found[name]["proxies"][0] for found in run])
    torch.testing.assert_close(together, loss.proxies.detach(), rtol=1e-5, atol=1e-5)


def test_sampled_classes_of_all_processes_are_one_softmax(run):
    chosen = torch.cat([found["sampled"]["chosen"][0] for found in run])
    _, loss = network_and_loss("arcface")
    alone = losses.build("arcface", num_classes=len(chosen), embedding_dim=D)
    alone.proxies.data = loss.proxies.detach()[chosen]
    x = torch.randn(ROWS, D, generator=torch.Generator().manual_seed(4)).requires_grad_()
    value = alone(x, torch.searchsorted(chosen, LABELS))
    value.backward()
    dense = torch.zeros(C, D).index_copy(0, chosen, alone.proxies.grad)
    for found in run:
        torch.testing.assert_close(found["sampled"]["value"][0], value.detach())
        torch.testing.assert_close(found["sampled"]["x"][0], x.grad, rtol=1e-4, atol=1e-6)
    together = torch.cat([found["sampled"]["proxies"][0] for found in run])
    torch.testing.assert_close(together, dense, rtol=1e-4, atol=1e-6)
