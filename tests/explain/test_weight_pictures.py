from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.explain import (
    Batch,
    LossChoice,
    draw_balanced,
    draw_weights,
    every_loss,
    measure_weights,
    similarity_weights,
    structured_batch,
    weight_curve,
)
from nearkin.explain.weights import hardest_pairs
from nearkin.losses import PairLoss, ProxyLoss

BESIDE_S = {"direction_proxy_nca", "adaface"}  # directions and lengths of embeddings count as well
SHOWN = [choice for choice in every_loss() if choice.name not in BESIDE_S]
ON_S_ALONE = {"margin": {"mining": "all"}, "npair": {"l2": 0.0}}
"""No fresh draws, no term beside those of S."""


@pytest.mark.parametrize("choice", SHOWN, ids=lambda choice: choice.name)
def test_weights_carry_the_gradient(choice):
    """∂L/∂x_i = Σ_j (∂L/∂S_ij) ∂S_ij/∂x_i, with the gradient from the loss itself."""
    batch = structured_batch(classes=4, images_per_class=3, embedding_dim=8)
    loss = LossChoice(choice.name, choice.hyperparameters | ON_S_ALONE.get(choice.name, {})).build(4, 8)
    loss.eval()  # running means stay as they are
    found = measure_weights(loss, batch)
    x = batch.embeddings.clone().requires_grad_()
    rows = normalize(x, dim=1) if loss.on_sphere else x
    if isinstance(loss, PairLoss):
        S = rows @ rows.T
    else:
        proxies = _means(batch, loss)
        with torch.no_grad():
            loss.proxies.copy_(proxies.view_as(loss.proxies))
        S = rows @ (normalize(proxies, dim=1) if loss.on_sphere else proxies).T
    torch.testing.assert_close(found.S, S.detach())
    (S * found.weights).sum().backward()
    y = batch.embeddings.clone().requires_grad_()
    loss(y, batch.labels).backward()
    torch.testing.assert_close(x.grad, y.grad, atol=2e-5, rtol=1e-4)


def _means(batch: Batch, loss: ProxyLoss) -> torch.Tensor:
    K = loss.proxies.shape[1] if loss.proxies.dim() == 3 else 1
    rows = normalize(batch.embeddings, dim=1) if loss.on_sphere else batch.embeddings
    return torch.stack([rows[batch.labels == c][k::K].mean(dim=0) for c in range(4) for k in range(K)])


def test_weights_are_those_of_the_library():
    batch = structured_batch()
    loss = losses.build("multi_similarity")
    torch.testing.assert_close(
        measure_weights(loss, batch).weights, loss.pair_weights(batch.embeddings, batch.labels)
    )


def test_random_mining_draws_the_same_again_and_leaves_the_generator_alone():
    batch = structured_batch(classes=4, images_per_class=3)
    loss = losses.build("margin")
    state = loss.generator.get_state()
    first, second = (measure_weights(loss, batch).weights for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(loss.generator.get_state(), state)


def test_a_curve_has_the_closed_form():
    batch = structured_batch(classes=3, images_per_class=3)
    loss = losses.build("multi_similarity", mining="all")
    found = measure_weights(loss, batch)
    kin, stranger = hardest_pairs(found)
    assert found.positive[kin]
    assert found.S[stranger] == found.S[found.negative].max()
    curve = weight_curve(loss, batch, stranger)
    others = found.negative[stranger[0]].clone()
    others[stranger[1]] = False
    rest = torch.exp(50 * (found.S[stranger[0], others].double() - 0.5)).sum()
    own = torch.exp(50 * (curve.similarity.double() - 0.5))
    torch.testing.assert_close(curve.weight.double(), own / (1 + own + rest) / 9, atol=1e-6, rtol=1e-4)
    assert curve.weight_there == found.weights[stranger]


def test_a_drawn_batch_is_balanced_and_sorted():
    labels = torch.tensor([7] * 9 + [3] * 2 + [5] * 6 + [1] * 6)
    chosen, numbers = draw_balanced(labels, classes=3, images_per_class=5)
    assert numbers.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert set(labels[chosen].tolist()) == {7, 5, 1}
    assert len(set(chosen.tolist())) == 15
    for too_few in ([1, 1, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match="at least two classes, one of them with two images"):
            draw_balanced(torch.tensor(too_few))


def test_the_picture_is_drawn(tmp_path):
    choices = [LossChoice.parse(text) for text in ("contrastive", "soft_triple")]
    found = draw_weights(choices, structured_batch(classes=4, images_per_class=3), tmp_path / "weights.svg")
    assert [one.weights.shape for one in found] == [(12, 12), (12, 8)]
    svg = (tmp_path / "weights.svg").read_text(encoding="utf-8")
    assert ">∂L/∂S<" in svg
    assert "$" not in svg  # no formula is left as it was typed
    draw_weights(choices, structured_batch(classes=4, images_per_class=3), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == svg


def test_losses_without_one_matrix_of_similarities_say_so():
    S, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="looks at similarities between proxies as well"):
        similarity_weights(losses.build("direction_proxy_nca", num_classes=2, embedding_dim=2), S, labels)
    with pytest.raises(ValueError, match="one_per_class"):
        similarity_weights(losses.build("npair", pairs="one_per_class"), S, labels)
    with pytest.raises(ValueError, match="metric='hyperbolic' is no function of cosines"):
        similarity_weights(losses.build("triplet", metric="hyperbolic"), S, labels)
    with pytest.raises(ValueError, match="Loss is neither pair-based nor proxy-based"):
        similarity_weights(losses.Loss(), S, labels)
