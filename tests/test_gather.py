"""The public gather, against one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from process_groups import found_together
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nearkin import losses
from nearkin.distributed import gather

ROWS, CLASSES, DIM = 24, 6, 4
SIZES = {
    "two even": [12, 12],
    "two uneven": [17, 7],
    "two, one without rows": [24, 0],
    "four even": [6, 6, 6, 6],
    "four uneven": [9, 1, 8, 6],
}
NAMES = ["multi_similarity", "triplet", "proxy_anchor"]


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, 5, generator=generator), torch.arange(ROWS) % CLASSES


def network_and_loss(name: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, DIM))
    generator = torch.Generator().manual_seed(1)
    return network, losses.build(name, num_classes=CLASSES, embedding_dim=DIM, generator=generator)


def gradients_of(*modules: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for module in modules for parameter in module.parameters()]


def in_one_process(name: str) -> list[Tensor]:
    network, loss = network_and_loss(name)
    points, labels = inputs()
    loss(network(points), labels).backward()
    return gradients_of(network, loss)


def under_ddp(name: str, own: slice) -> list[Tensor]:
    network, loss = network_and_loss(name)
    points, labels = inputs()
    parallel = DistributedDataParallel(network)
    wrapped = DistributedDataParallel(loss) if list(loss.parameters()) else loss
    wrapped(*gather(parallel(points[own]), labels[own])).backward()
    return gradients_of(network, loss)


def in_a_loop_that_sums(name: str, own: slice) -> list[Tensor]:
    network, loss = network_and_loss(name)
    points, labels = inputs()
    loss(gather(network(points[own]), gradients="summed"), gather(labels[own])).backward()
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
    return gradients_of(network, loss)


def mean_over_own_anchors(own: slice) -> list[Tensor]:
    """Every process compares its own rows with all: the losses of processes differ."""
    network, _ = network_and_loss("triplet")
    points, _ = inputs()
    parallel = DistributedDataParallel(network)  # named: it must live until the backward pass
    embeddings = parallel(points[own])
    (embeddings @ gather(embeddings).T).exp().mean().backward()
    return gradients_of(network)


def refused() -> list[str]:
    """What is said, in every process, of rows that do not fit together."""
    rank = dist.get_rank()
    try:
        gather(torch.zeros(2, 3 + rank))
    except ValueError as error:
        return [str(error)]
    return []


def work(rank: int, sizes: list[int]) -> dict:
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    rows, labels = gather(torch.arange(ROWS * 2.0).view(ROWS, 2)[own], torch.arange(ROWS)[own])
    return {
        "rows": rows,
        "labels": labels,
        "flags": gather(torch.arange(ROWS)[own] % 2 == 0),
        "ddp": {name: under_ddp(name, own) for name in NAMES},
        "summed": {name: in_a_loop_that_sums(name, own) for name in NAMES},
        "own anchors": mean_over_own_anchors(own) if min(sizes) else [],
        "refused": refused(),
    }


@pytest.fixture(scope="module", params=SIZES)
def run(request, tmp_path_factory) -> tuple[list[int], list[dict]]:
    """The rows per process, and what each of them found."""
    sizes = SIZES[request.param]
    return sizes, found_together(work, len(sizes), tmp_path_factory.mktemp("processes"), sizes)


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_every_process_has_all_rows_in_the_order_of_ranks(run):
    for found in run[1]:
        assert torch.equal(found["rows"], torch.arange(ROWS * 2.0).view(ROWS, 2))
        assert torch.equal(found["labels"], torch.arange(ROWS))
        assert torch.equal(found["flags"], torch.arange(ROWS) % 2 == 0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_under_ddp_are_those_of_one_process(run, name):
    expected = in_one_process(name)
    for found in run[1]:
        assert_equal(found["ddp"][name], expected)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_a_loop_that_sums_are_those_of_one_process(run, name):
    expected = in_one_process(name)
    for found in run[1]:
        assert_equal(found["summed"][name], expected)


def test_losses_that_differ_between_processes_give_the_gradient_of_their_mean(run):
    sizes, of_ranks = run
    if not min(sizes):
        assert all(found["own anchors"] == [] for found in of_ranks)
        return
    network, _ = network_and_loss("triplet")
    embeddings = network(inputs()[0])
    parts = [(part @ embeddings.T).exp().mean() for part in embeddings.split(sizes)]
    torch.stack(parts).mean().backward()
    for found in of_ranks:
        assert_equal(found["own anchors"], gradients_of(network))


def test_rows_of_different_shapes_are_refused_everywhere(run):
    sizes, of_ranks = run
    told = ", ".join(f"(2, {3 + rank})" for rank in range(len(sizes)))
    for found in of_ranks:
        assert found["refused"] == [
            f"embeddings of different shapes cannot be gathered: processes have {told}"
        ]


def test_one_process_gets_back_what_it_gave():
    rows, labels = torch.randn(3, 2, requires_grad=True), torch.arange(3)
    assert gather(rows) is rows
    both = gather(rows, labels)
    assert both[0] is rows
    assert both[1] is labels


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((torch.zeros(3, 2), torch.arange(2)), {}, r"3 embeddings but labels of shape \(2,\)"),
        ((torch.zeros(3, 2), torch.tensor(1)), {}, r"3 embeddings but labels of shape \(\)"),
        ((torch.tensor(1.0),), {}, "a single number"),
        ((torch.zeros(3, 2),), {"gradients": "mean"}, "gradients='mean' must be one of: averaged, summed"),
    ],
)
def test_wrong_arguments_are_named(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        gather(*arguments, **keywords)
