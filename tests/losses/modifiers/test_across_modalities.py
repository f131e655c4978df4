"""Every loss from one modality to the other."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from nearkin import losses
from nearkin.losses import PairLoss
from nearkin.losses.modifiers import AcrossModalities

LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def rows(dtype=torch.float64):
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)


def made(name):
    return losses.build(
        name, num_classes=4, embedding_dim=4, generator=torch.Generator().manual_seed(0)
    ).double()


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_goes_across_by_its_references_or_its_proxies(name):
    x = rows().requires_grad_()
    value = AcrossModalities(made(name))(x, LABELS)
    first, second = rows()[:, :4], rows()[:, 4:]
    if isinstance(made(name), PairLoss):
        loss = made(name)  # one, whose generator goes on
        one = loss(first, LABELS, references=second, reference_labels=LABELS)
        other = loss(second, LABELS, references=first, reference_labels=LABELS)
        assert torch.allclose(value, (one + other) / 2)
    else:
        expected = made(name)(torch.cat([first, second]), torch.cat([LABELS, LABELS]))
        assert torch.allclose(value, expected)
    value.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_multi_similarity_weighs_pairs_across_as_its_equation_says():
    """General pair weighting across modalities: by loops, the softmax weights of each anchor's own pairs."""
    alpha, beta, threshold = 2.0, 10.0, 0.5
    loss = losses.build("multi_similarity", alpha=alpha, beta=beta, margin=threshold, mining="all").double()
    first, second = (torch.nn.functional.normalize(half) for half in rows().chunk(2, dim=1))
    labels, S = LABELS, first @ second.T
    naive = torch.zeros_like(S)
    for i in range(6):
        positive = [j for j in range(6) if labels[j] == labels[i]]
        negative = [j for j in range(6) if labels[j] != labels[i]]
        pull = {j: torch.exp(-alpha * (S[i, j] - threshold)) for j in positive}
        push = {j: torch.exp(beta * (S[i, j] - threshold)) for j in negative}
        for j in positive:
            naive[i, j] = -pull[j] / (1 + sum(pull.values())) / 6
        for j in negative:
            naive[i, j] = push[j] / (1 + sum(push.values())) / 6
    found = loss.pair_weights(first, labels, references=second, reference_labels=labels)
    assert torch.allclose(found, naive)


@pytest.mark.parametrize("name", ["info_nce", "multi_similarity", "proxy_anchor"])
def test_gradients_are_exact_and_values_are_per_pair(name):
    loss = AcrossModalities(made(name))
    assert gradcheck(lambda x: loss(x, LABELS), rows().requires_grad_())
    values = loss(rows(), LABELS, reduction="none")
    assert values.shape == (6,)
    assert torch.allclose(values.mean(), loss(rows(), LABELS))


def test_halves_must_be_of_one_size():
    with pytest.raises(ValueError, match="embeddings of 7 columns are not two of one size"):
        AcrossModalities(made("info_nce"))(rows()[:, :7], LABELS)


def test_parameters_of_the_loss_are_trained():
    assert [group["name"] for group in AcrossModalities(made("proxy_anchor")).param_groups(0.1)] == [
        "proxies"
    ]
