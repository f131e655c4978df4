"""One value per sample, weights per sample and printing: what every loss offers."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses.testing import CLASSES, DIM, LABELS, batch

SIZES = {"num_classes": CLASSES, "embedding_dim": DIM}
WEIGHTS = torch.tensor([2.0, 0, 1, 1, 0.5, 3, 1, 0, 1, 1, 2, 1])


def remembering(name: str = "contrastive", **keywords):
    memory = losses.CrossBatchMemory(losses.build(name), size=6)
    memory(batch(seed=4), LABELS)
    memory.reduction = keywords.get("reduction", "mean")
    return memory.eval()


def guided(**keywords):
    meanings = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(0))
    loss = losses.LanguageGuidance(
        losses.build("multi_similarity"), [str(c) for c in range(CLASSES)], meanings
    )
    loss.reduction = keywords.get("reduction", "mean")
    return loss


def made(name: str, **keywords):
    makers = {"with a memory": remembering, "with language": guided}
    return makers[name](**keywords) if name in makers else losses.build(name, **SIZES, **keywords)


EVERY = [*losses.names(), "with a memory", "with language"]
WITH_PROXIES = [name for name in losses.names() if not losses.compares_samples(name)]
# The draws of margin's miner, and the length term of npair, know how many rows there are.
OVER_PAIRS = [
    name for name in losses.names() if losses.compares_samples(name) and name not in ("margin", "npair")
]


@pytest.mark.parametrize("name", EVERY)
def test_the_mean_of_the_values_is_the_loss(name):
    value = made(name)(batch(), LABELS)
    values = made(name, reduction="none")(batch(), LABELS)
    assert values.shape == LABELS.shape
    torch.testing.assert_close(values.mean(), value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made(name)(batch(), LABELS, reduction="none"), values)
    assert made(name, reduction="none")(batch(), LABELS, reduction="mean") == value


@pytest.mark.parametrize("name", EVERY)
def test_equal_weights_change_nothing(name):
    value = made(name)(batch(), LABELS)
    torch.testing.assert_close(
        made(name)(batch(), LABELS, weights=torch.ones(len(LABELS))), value, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", EVERY)
def test_a_sample_without_weight_gives_nothing_as_an_anchor(name):
    x = batch().requires_grad_()
    values = made(name)(x, LABELS, weights=WEIGHTS, reduction="none")
    mean = made(name)(x, LABELS, weights=WEIGHTS)
    torch.testing.assert_close(values.mean(), mean, rtol=1e-4, atol=1e-5)
    mean.backward()
    assert torch.isfinite(x.grad).all()
    without = made(name)(batch(), LABELS, weights=torch.zeros(len(LABELS)))
    assert torch.isfinite(without)
    if name not in WITH_PROXIES:  # which may have terms between proxies
        assert without == 0


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_batch_has_no_values(name):
    loss, x = made(name), batch()[:0].requires_grad_()
    values = loss(x, LABELS[:0], weights=torch.ones(0), reduction="none")
    assert values.shape == (0,)
    for value in (values.sum(), loss(x, LABELS[:0], weights=torch.ones(0)), loss(x, LABELS[:0])):
        assert value == 0
        value.backward()
    for parameter in loss.parameters():
        assert parameter.grad is None or not parameter.grad.any()


@pytest.mark.parametrize("name", OVER_PAIRS)
def test_weights_with_references(name):
    """Anchors against a gallery: a copy of an anchor counts like a weight of 2."""
    gallery, y = batch(seed=1), LABELS
    again = torch.tensor([0, 0, 1, 2, 3, 3, 4])
    weights = torch.tensor([2.0, 1, 1, 2, 1])
    keywords = {"references": gallery, "reference_labels": y}
    copied = losses.build(name)(batch()[again], y[again], **keywords)
    counted = losses.build(name)(batch()[:5], y[:5], **keywords, weights=weights)
    torch.testing.assert_close(counted, copied, rtol=1e-4, atol=1e-5)


def test_weights_of_raw_inner_products_with_references():
    again, weights = torch.tensor([0, 0, 1, 2]), torch.tensor([2.0, 1, 1])
    keywords = {"references": batch(seed=1), "reference_labels": LABELS}
    copied = losses.NPair()(batch()[again], LABELS[again], **keywords)
    torch.testing.assert_close(losses.NPair()(batch()[:3], LABELS[:3], **keywords, weights=weights), copied)


@pytest.mark.parametrize("name", WITH_PROXIES)
def test_a_copy_of_a_sample_counts_like_a_weight_of_2(name):
    again = torch.tensor([0, 0, 1, 2, 3, 3, 4])
    weights = torch.tensor([2.0, 1, 1, 2, 1])
    copied = made(name)(batch()[again], LABELS[again])
    counted = made(name)(batch()[:5], LABELS[:5], weights=weights)
    torch.testing.assert_close(counted, copied, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["contrastive", "softmax", "with language"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), r"weights must have shape \(12,\), one per embedding, not \(3,\)"),
        (-WEIGHTS, r"weights must be finite and not negative, not -2.0 \(row 0\)"),
        (WEIGHTS / 0, r"not inf \(row 0\)"),
        (WEIGHTS * torch.nan, r"not nan \(row 0\)"),
    ],
)
def test_wrong_weights_are_refused(name, weights, message):
    with pytest.raises(ValueError, match=message):
        made(name)(batch(), LABELS, weights=weights)


@pytest.mark.parametrize("name", ["contrastive", "softmax", "with language"])
def test_wrong_reductions_are_refused(name):
    with pytest.raises(ValueError, match="reduction='sum' must be one of: mean, none"):
        made(name)(batch(), LABELS, reduction="sum")


def test_build_refuses_a_wrong_reduction():
    with pytest.raises(ValueError, match="reduction='average'"):
        losses.build("nca", reduction="average")


def test_a_loss_that_states_a_scalar_has_no_values():
    class Plain(losses.PairLoss):
        def value(self, S, pairs):
            return (S * pairs.negative).mean()

    class PlainWithProxies(losses.ProxyLoss):
        def value(self, S, labels):
            return S.mean()

    for loss in (Plain(), PlainWithProxies(CLASSES, DIM, None)):
        loss(batch().requires_grad_(), LABELS).backward()
        with pytest.raises(ValueError, match="it must give one value per"):
            loss(batch(), LABELS, reduction="none")


@pytest.mark.parametrize("name", losses.names())
def test_print_shows_the_hyperparameters(name):
    loss = made(name)
    for keyword in losses.describe(name).defaults:
        assert f"{keyword}=" in repr(loss)
    assert "reduction='none'" in repr(made(name, reduction="none"))


def test_print_of_a_loss_that_keeps_nothing():
    class Forgetful(losses.PairLoss):
        def __init__(self, margin: float = 0.5, *others, **more) -> None:
            super().__init__()

    assert repr(Forgetful()) == "Forgetful()"
