from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses

C, K, D, B = 4, 5, 6, 11


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(B, D, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(), torch.randint(C, (B,), generator=generator)


def merged_loss(jitter=0.0):
    """Class 0 has 5 centres, class 1 has 2 (3 and 2 merged), class 2 has 1, class 3 has 4."""
    loss = losses.build("soft_triple", num_classes=C, embedding_dim=D, proxies_per_class=K).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        free = normalize(torch.randn(C, K, D, generator=generator, dtype=torch.float64), dim=2)
        same = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 2, 3, 3]])
        loss.proxies.copy_(free.gather(1, same.unsqueeze(2).expand_as(free)))
        # Of any length: what counts is the direction.
        loss.proxies.mul_(torch.rand(C, K, 1, generator=generator, dtype=torch.float64) + 0.5)
        loss.proxies.add_(jitter * torch.randn(C, K, D, generator=generator, dtype=torch.float64))
    return loss


def test_distinct_centres_are_counted():
    assert merged_loss().distinct_centres().tolist() == [5, 2, 1, 4]
    assert merged_loss(jitter=1e-4).distinct_centres().tolist() == [5, 2, 1, 4]
    assert merged_loss(jitter=1e-4).distinct_centres(degrees=1e-6).tolist() == [5, 5, 5, 5]


def test_centres_merge_by_way_of_others():
    loss = losses.build("soft_triple", num_classes=1, embedding_dim=2, proxies_per_class=K)
    angles = torch.tensor([0.0, 40.0, 0.8, 1.6, 2.4]).deg2rad()
    with torch.no_grad():
        loss.proxies.copy_(torch.stack([angles.cos(), angles.sin()], dim=1)[None])
    assert loss.merged_into().tolist() == [[0, 1, 0, 0, 0]]


def test_pruning_is_exact():
    """Value, gradients by samples and one value per sample of the first term stay as they are."""
    whole = merged_loss()
    small = whole.pruned()
    assert small.proxies_per_class == 5
    assert small.log_copies.exp().sum(dim=1).tolist() == pytest.approx([5.0] * C)
    whole.tau = 0.0  # the second term is left out of the pruned loss
    (x, y), (x_, _) = batch(), batch()
    value, expected = small(x, y), whole(x_, y)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(
        torch.autograd.grad(value, x)[0], torch.autograd.grad(expected, x_)[0], rtol=1e-11, atol=1e-12
    )
    torch.testing.assert_close(small(x, y, reduction="none"), whole(x, y, reduction="none"))


def test_fewer_places_are_kept_where_no_class_needs_them():
    whole = merged_loss()
    with torch.no_grad():
        whole.proxies[0] = whole.proxies[0, :1]
        whole.proxies[3] = whole.proxies[3, :1]
    small = whole.pruned()
    assert small.proxies.shape == (C, 2, D)
    whole.tau = 0.0
    x, y = batch()
    torch.testing.assert_close(small(x, y), whole(x, y), rtol=1e-13, atol=1e-13)
    assert torch.isfinite(torch.autograd.grad(small(x, y), small.proxies)[0]).all()
    again = small.pruned()  # counts are kept
    torch.testing.assert_close(again(x, y), small(x, y), rtol=1e-13, atol=1e-13)


def test_nearly_merged_centres_become_their_mean():
    whole = merged_loss(jitter=1e-5)
    small = whole.pruned()
    whole.tau = 0.0
    x, y = batch()
    assert small(x, y).item() == pytest.approx(whole(x, y).item(), abs=1e-3)
    merged = normalize(whole.proxies[2], dim=1).mean(dim=0)
    assert torch.cosine_similarity(small.proxies[2, 0], merged, dim=0) > 1 - 1e-12


def test_gradients_of_a_pruned_loss():
    small = merged_loss().pruned()
    x, y = batch()
    assert torch.autograd.gradcheck(lambda x: small(x, y), x)


def test_the_counts_travel_in_the_state():
    small = merged_loss().pruned()
    other = losses.build("soft_triple", num_classes=C, embedding_dim=D, proxies_per_class=K).double()
    other.load_state_dict(small.state_dict())
    x, y = batch()
    assert torch.equal(other(x, y), small(x, y))
    other.load_state_dict(merged_loss().state_dict())
    assert other.log_copies is None


def test_the_second_term_merges_centres():
    """A class of one mode ends with fewer centres than it began with."""
    generator = torch.Generator().manual_seed(0)
    loss = losses.build(
        "soft_triple", num_classes=2, embedding_dim=3, proxies_per_class=4, tau=1.0, generator=generator
    )
    x = torch.randn(40, 3, generator=generator) * 0.1 + torch.tensor([1.0, 0, 0])
    x[20:, 0] *= -1
    y = torch.arange(2).repeat_interleave(20)
    assert loss.distinct_centres(degrees=5).tolist() == [4, 4]
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()
    assert loss.distinct_centres(degrees=5).max() < 4


def test_a_pruned_loss_compares_all_classes_at_once():
    small = merged_loss().pruned()
    small.tile = 2
    with pytest.raises(ValueError, match="pruned SoftTriple compares all 4 classes at once"):
        small(*batch())


@pytest.mark.parametrize("degrees", [0, 90, -1, float("nan")])
def test_wrong_angles_are_named(degrees):
    with pytest.raises(ValueError, match="must be an angle above 0 and below 90"):
        merged_loss().distinct_centres(degrees=degrees)
