from __future__ import annotations

import copy

import naive
import pytest
import torch

from nearkin import losses
from nearkin.losses.modifiers.memory import CrossBatchMemory

DIM = 5


def batches(count, size=6, classes=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        embeddings = torch.randn(size, DIM, generator=generator, dtype=torch.float64).to(dtype)
        labels = torch.randint(0, classes, (size,), generator=generator)
        yield embeddings.requires_grad_(), labels, torch.arange(size) + size * number


def pair_losses():
    return [name for name in losses.names() if issubclass(losses.get(name), losses.PairLoss)]


def proxy_losses():
    return [name for name in losses.names() if issubclass(losses.get(name), losses.ProxyLoss)]


def past(seen, size):
    """What the queue must hold after these batches, as a plain list would."""
    rows = [row for embeddings, _, _ in seen for row in embeddings.detach()]
    labels = [label for _, labels, _ in seen for label in labels]
    return torch.stack(rows[-size:]), torch.stack(labels[-size:])


@pytest.mark.parametrize("name", pair_losses())
def test_value_and_gradient_are_those_of_both_terms(name):
    memory = CrossBatchMemory(losses.build(name), size=15, weight=0.5)
    for embeddings, labels, ids in batches(6):
        plain = losses.build(name)
        plain.load_state_dict(memory.loss.state_dict())  # the same random draws
        stored = memory.recall() if memory.filled else None
        value = memory(embeddings, labels, ids)
        value.backward()

        alone = embeddings.detach().clone().requires_grad_()
        expected = plain(alone, labels)
        if stored:
            references, reference_labels = stored
            expected = expected + 0.5 * plain(
                alone, labels, references=references, reference_labels=reference_labels
            )
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(embeddings.grad, alone.grad)


@pytest.mark.parametrize(("size", "batch"), [(15, 6), (6, 6), (4, 6), (1, 3), (100, 6)])
def test_keeps_the_newest_embeddings(size, batch):
    memory = CrossBatchMemory(losses.build("contrastive"), size=size)
    seen = []
    for embeddings, labels, ids in batches(5, size=batch):
        memory(embeddings, labels, ids)
        seen.append((embeddings, labels, ids))
        expected, expected_labels = past(seen, size)
        stored, stored_labels = memory.recall()
        assert memory.filled == len(stored) == len(expected)
        order = memory.ids[: memory.filled].argsort()  # ids grow with time
        torch.testing.assert_close(stored[order], expected)
        assert torch.equal(stored_labels[order], expected_labels)


def test_an_empty_memory_adds_nothing():
    embeddings, labels, ids = next(batches(1))
    memory = CrossBatchMemory(losses.build("contrastive"), size=10)
    torch.testing.assert_close(
        memory(embeddings, labels, ids), losses.build("contrastive")(embeddings, labels)
    )


def test_the_batch_alone_counts_during_warm_up_while_the_queue_fills():
    memory = CrossBatchMemory(losses.build("contrastive"), size=100, warmup_steps=3)
    plain = losses.build("contrastive")
    for step, (embeddings, labels, ids) in enumerate(batches(5)):
        assert memory.filled == 6 * step
        alone = torch.equal(memory(embeddings, labels, ids), plain(embeddings, labels))
        assert alone == (step < 3)


def test_a_samples_own_old_copy_is_left_out():
    memory = CrossBatchMemory(losses.build("contrastive"), size=10)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    labels, ids = torch.tensor([0, 1]), torch.tensor([4, 9])
    memory(x, labels, ids)
    moved = torch.tensor([[0.0, 1.0], [1.0, 0.0]], requires_grad=True)
    # Without the copies there is no positive pair, and no near negative.
    assert memory.eval()(moved, labels, ids) == 0
    assert memory(moved, labels) > 0.5
    stored, stored_labels = memory.recall(torch.tensor([9, 5]))
    assert stored.tolist() == [[1.0, 0.0]]
    assert stored_labels.tolist() == [0]


def test_only_stale_copies_in_the_memory_give_an_exact_zero_and_a_gradient():
    memory = CrossBatchMemory(losses.build("multi_similarity"), size=10)
    embeddings, labels, ids = torch.randn(1, DIM), torch.tensor([0]), torch.tensor([3])
    for _ in range(3):
        x = embeddings.clone().requires_grad_()
        value = memory(x, labels, ids)
        value.backward()
        assert value == 0
        assert torch.equal(x.grad, torch.zeros_like(x))


def test_batches_stored_without_ids_are_kept():
    memory = CrossBatchMemory(losses.build("contrastive"), size=20)
    stream = list(batches(2))
    memory(*stream[0][:2])
    assert len(memory.recall(torch.arange(1000))[0]) == 6


def test_evaluation_neither_stores_nor_counts():
    memory = CrossBatchMemory(losses.build("contrastive"), size=20, warmup_steps=1).eval()
    for embeddings, labels, ids in batches(3):
        memory(embeddings, labels, ids)
    assert memory.filled == 0
    assert memory.state_dict()["steps"] == 0


def test_a_resumed_run_has_its_queue():
    stream = list(batches(8))
    whole = CrossBatchMemory(losses.build("contrastive"), size=15, warmup_steps=2)
    values = [whole(*batch) for batch in stream]

    first = CrossBatchMemory(losses.build("contrastive"), size=15, warmup_steps=2)
    for batch in stream[:4]:
        first(*batch)
    state = copy.deepcopy(first.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    resumed = CrossBatchMemory(losses.build("contrastive"), size=15, warmup_steps=2)
    resumed.load_state_dict(state)
    assert [resumed(*batch) for batch in stream[4:]] == values[4:]
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


def test_the_state_of_a_fresh_memory_empties_a_used_one():
    memory = CrossBatchMemory(losses.build("contrastive"), size=15)
    fresh = copy.deepcopy(memory.state_dict())
    memory(*next(batches(1)))
    memory.load_state_dict(fresh)
    assert memory.filled == 0
    memory(*next(batches(1)))


def test_a_queue_of_another_size_is_refused():
    used = CrossBatchMemory(losses.build("contrastive"), size=15)
    used(*next(batches(1)))
    other = CrossBatchMemory(losses.build("contrastive"), size=16)
    with pytest.raises(RuntimeError, match="size=16 but the stored memory holds 15 embeddings"):
        other.load_state_dict(used.state_dict())


def test_multi_hot_labels():
    memory = CrossBatchMemory(losses.build("contrastive"), size=15)
    one_hot = CrossBatchMemory(losses.build("contrastive"), size=15)
    for embeddings, labels, ids in batches(4):
        multi = torch.nn.functional.one_hot(labels, 3)
        torch.testing.assert_close(one_hot(embeddings, multi, ids), memory(embeddings, labels, ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_dtype(dtype):
    memory = CrossBatchMemory(losses.build("multi_similarity"), size=15)
    for embeddings, labels, ids in batches(4, dtype=dtype):
        memory(embeddings, labels, ids).backward()
        assert torch.isfinite(embeddings.grad).all()
        assert embeddings.grad.dtype == dtype


@pytest.mark.parametrize("raw", [True, False], ids=["inner products", "cosines"])
def test_autocast_and_raw_inner_products_survive_backward_after_storing(raw):
    """Storing overwrites the queue that backward still needs; autocast must change nothing of either."""

    class Pushing(losses.PairLoss):
        on_sphere = not raw

        def value(self, S, pairs):
            return (S * pairs.negative).sum()

    with_autocast, plain = CrossBatchMemory(Pushing(), size=8), CrossBatchMemory(Pushing(), size=8)
    for embeddings, labels, ids in batches(4):
        alone = embeddings.detach().clone().requires_grad_()
        stored = plain.recall() if plain.filled else None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = with_autocast(embeddings, labels, ids)
        value.backward()
        expected = plain(alone, labels, ids)
        expected.backward()
        assert torch.equal(value, expected)
        assert torch.equal(embeddings.grad, alone.grad)
        rows = alone.detach() if raw else torch.nn.functional.normalize(alone.detach())
        others = (labels[:, None] != labels).float()
        by_hand = 2 * others @ rows
        if stored is not None:
            queue = stored[0] if raw else torch.nn.functional.normalize(stored[0])
            by_hand = by_hand + (labels[:, None] != stored[1]).float() @ queue
        if raw:
            torch.testing.assert_close(alone.grad, by_hand)
        else:
            tangent = by_hand - rows * (rows * by_hand).sum(1, keepdim=True)
            torch.testing.assert_close(alone.grad, tangent / alone.detach().norm(dim=1, keepdim=True))


def test_learnable_parameters_of_the_loss_are_found():
    class WithBoundary(losses.PairLoss):
        def __init__(self):
            super().__init__()
            self.beta = torch.nn.Parameter(torch.tensor(0.5))

        def value(self, S, pairs):
            return (self.beta - S).relu().mean()

    (group,) = CrossBatchMemory(WithBoundary(), size=8).param_groups(lr=0.1)
    assert (group["name"], group["lr"]) == ("beta", 0.1)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="cannot use a memory: it takes no references"):
        CrossBatchMemory(lambda embeddings, labels: embeddings.sum(), size=5)
    mixed = losses.modifiers.build("mixup", losses.build("proxy_anchor", num_classes=3, embedding_dim=2))
    with pytest.raises(ValueError, match="mixup around ProxyAnchor cannot use a memory"):
        CrossBatchMemory(mixed, size=5)
    for keywords, message in [
        ({"size": 0}, "size=0"),
        ({"size": 5, "warmup_steps": -1}, "warmup_steps=-1"),
        ({"size": 5, "weight": -1.0}, "weight=-1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            CrossBatchMemory(losses.build("contrastive"), **keywords)
    memory = CrossBatchMemory(losses.build("contrastive"), size=5)
    embeddings, labels, ids = next(batches(1))
    with pytest.raises(ValueError, match="5 ids for 6 embeddings"):
        memory(embeddings, labels, ids[:-1])
    memory(embeddings, labels, ids)
    with pytest.raises(ValueError, match="the embeddings have 4 columns but the stored ones have 5"):
        memory(embeddings[:, :4], labels, ids)
    with pytest.raises(ValueError, match=r"of the same kind, not \(6, 3\) and \(5,\)"):
        memory(embeddings, torch.nn.functional.one_hot(labels, 3), ids)


def test_printed_form_says_how_full_it_is():
    memory = CrossBatchMemory(losses.build("contrastive"), size=10, warmup_steps=2)
    memory(*next(batches(1)))
    assert "size=10, warmup_steps=2, weight=1.0, filled=6" in repr(memory)
    assert "Contrastive(" in repr(memory)


# ------------------------------------------------------------------------------- losses with proxies


PROXY_CASES = [
    ("proxy_repulsion", {}, naive.proxy_repulsion),
    ("proxy_repulsion", {"through_samples": False}, naive.proxy_repulsion),
    ("proxy_anchor", {}, naive.proxy_anchor),
    ("proxy_nca", {}, naive.proxy_nca),
    ("softmax", {"normalized": True}, naive.softmax),
    ("soft_triple", {"proxies_per_class": 2}, naive.soft_triple),
]


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize(
    ("name", "keywords", "oracle"), PROXY_CASES, ids=lambda part: getattr(part, "__name__", str(part))
)
def test_what_is_remembered_joins_the_samples_of_each_class(name, keywords, oracle, weight):
    """Plain loops over the batch and the memory, whose embeddings are constants."""
    loss = losses.build(name, num_classes=3, embedding_dim=DIM, **keywords).double()
    memory = CrossBatchMemory(loss, size=9, weight=weight)
    for embeddings, labels, ids in batches(3, dtype=torch.float64):
        stored = memory.recall() if memory.filled else (embeddings[:0].detach(), labels[:0])
        value = memory(embeddings, labels, ids)
        gradients = torch.autograd.grad(value, [embeddings, loss.proxies])

        alone = embeddings.detach().clone().requires_grad_()
        proxies = loss.proxies.detach().clone().requires_grad_()
        joined, all_labels = torch.cat([alone, stored[0]]), torch.cat([labels, stored[1]]).tolist()
        counts = [1.0] * len(labels) + [weight] * len(stored[1])
        expected = oracle(joined, all_labels, proxies, **keywords, counts=counts).sum()
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
        wanted = torch.autograd.grad(expected, [alone, proxies])
        torch.testing.assert_close(gradients, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", proxy_losses())
def test_every_proxy_loss_takes_a_memory(name):
    """The value of the joined batch; the batch's gradient, and none for what is remembered."""
    memory = CrossBatchMemory(losses.build(name, num_classes=3, embedding_dim=DIM), size=15)
    for embeddings, labels, ids in batches(4):
        plain = losses.build(name, num_classes=3, embedding_dim=DIM)
        plain.load_state_dict(memory.loss.state_dict())  # running means included
        stored = memory.recall() if memory.filled else (embeddings[:0].detach(), labels[:0])
        value = memory(embeddings, labels, ids)
        value.backward()
        alone = torch.cat([embeddings.detach(), stored[0]]).requires_grad_()
        expected = plain(alone, torch.cat([labels, stored[1]]))
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(embeddings.grad, alone.grad[: len(labels)])
        torch.testing.assert_close(memory.loss.proxies.grad, plain.proxies.grad)
        memory.loss.proxies.grad = None
    assert memory.filled == 15


@pytest.mark.parametrize("name", ["proxy_repulsion", "proxy_anchor", "softmax"])
def test_gradcheck_with_references(name):
    (x, y, _), (others, their_labels, _) = batches(2, dtype=torch.float64)
    loss = losses.build(name, num_classes=3, embedding_dim=DIM).double()

    def value(x, proxies):
        by_name = {"proxies": proxies}
        keywords = {"references": others, "reference_labels": their_labels, "reference_weight": 0.7}
        return torch.func.functional_call(loss, by_name, (x, y), keywords)

    assert torch.autograd.gradcheck(value, (x, loss.proxies.detach().clone().requires_grad_()))


def test_one_value_per_sample_has_the_memory_in_each():
    loss = losses.build("proxy_anchor", num_classes=3, embedding_dim=DIM).double()
    memory = CrossBatchMemory(loss, size=15)
    first, second = batches(2, dtype=torch.float64)
    memory(*first)
    memory.eval()
    values = memory(*second, reduction="none")
    assert values.shape == (6,)
    torch.testing.assert_close(values.mean(), memory(*second))


def test_relations_are_those_of_the_batch_alone():
    """Multi-similarity looks at the batch's own pairs, whatever is remembered."""
    sizes = {"num_classes": 3, "embedding_dim": DIM}
    with_relations = CrossBatchMemory(losses.build("proxy_repulsion", relations=0.5, **sizes), size=15)
    without = CrossBatchMemory(losses.build("proxy_repulsion", **sizes), size=15)
    for batch in batches(3):
        expected = without(*batch) + 0.5 * losses.build("multi_similarity")(*batch[:2])
        torch.testing.assert_close(with_relations(*batch), expected)


def test_a_memory_around_matryoshka_cuts_what_is_remembered():
    sizes = {"num_classes": 3, "embedding_dim": DIM}
    inside = losses.modifiers.build("matryoshka", losses.build("proxy_anchor", **sizes), sizes=[DIM, 2])
    memory = CrossBatchMemory(inside, size=15)
    first, second = batches(2)
    memory(*first)
    plain = losses.build("proxy_anchor", **sizes)
    joined, labels = torch.cat([second[0], first[0]]), torch.cat([second[1], first[1]])
    short = losses.build("proxy_anchor", num_classes=3, embedding_dim=2)
    with torch.no_grad():
        short.proxies.copy_(plain.proxies[:, :2])
    torch.testing.assert_close(memory(*second), plain(joined, labels) + short(joined[:, :2], labels))


def test_references_of_proxies_are_checked():
    loss = losses.build("proxy_anchor", num_classes=3, embedding_dim=DIM)
    x, y, _ = next(batches(1))
    for keywords, message in [
        ({"references": x}, "references and reference_labels come together"),
        ({"references": x, "reference_labels": y[:2]}, "2 reference_labels for 6 embeddings"),
        (
            {"references": x[:, :2], "reference_labels": y},
            "embedding_dim=5 but the references have 2 columns",
        ),
        ({"references": x, "reference_labels": y + 3}, "out of range for num_classes=3"),
        ({"references": x, "reference_labels": y, "reference_weight": -1.0}, "reference_weight=-1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            loss(x, y, **keywords)
