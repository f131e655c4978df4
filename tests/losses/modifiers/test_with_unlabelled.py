"""A loss on labelled rows and a term on the others: each sees its own rows, and nothing of the other's."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import InfoNCE, SelfTaught
from nearkin.losses.modifiers import NoLabels, OfClusters, WithUnlabelled, teacher_decay

B, D, F = 10, 4, 6
LABELS = torch.tensor([0, -1, 0, -1, 1, -1, 1, -1, 2, 2])
IDS = torch.tensor([10, 3, 11, 3, 12, 5, 13, 5, 14, 15])
KNOWN = LABELS >= 0


def rows(seed, size=D):
    return torch.randn(B, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ["multi_similarity", "proxy_anchor", "triplet"])
def test_the_sum_of_both_on_their_own_rows(name):
    bare = losses.build(name, num_classes=3, embedding_dim=D).double()
    term = InfoNCE(temperature=0.3)
    x = rows(0).requires_grad_()
    value = WithUnlabelled(bare, term, weight=0.7)(x, LABELS, ids=IDS)
    expected = bare(x[KNOWN], LABELS[KNOWN]) + 0.7 * term(x[~KNOWN], IDS[~KNOWN])
    torch.testing.assert_close(value, expected)
    (found,), (wanted,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(found, wanted)
    values = WithUnlabelled(bare, term, weight=0.7)(x, LABELS, ids=IDS, reduction="none")
    torch.testing.assert_close(values.mean(), expected)


def test_the_labelled_loss_is_not_moved_by_rows_without_a_label_and_the_term_not_by_labels():
    x = rows(0).requires_grad_()
    alone = WithUnlabelled(losses.build("multi_similarity"), InfoNCE(), weight=0.0)
    (gradient,) = torch.autograd.grad(alone(x, LABELS, ids=IDS), x)
    assert gradient[~KNOWN].abs().max() == 0
    assert gradient[KNOWN].abs().max() > 0
    other = torch.where(KNOWN, 2 - LABELS.clamp(min=0), LABELS)
    nothing = WithUnlabelled(NoLabels(), InfoNCE(), weight=1.0)
    assert torch.equal(nothing(x, LABELS, ids=IDS), nothing(x, other, ids=IDS))


def test_what_is_handed_is_cut_to_the_rows():
    bare, clusters = losses.build("contrastive"), torch.where(KNOWN, -1, IDS % 2)
    x = rows(0)
    term = OfClusters(losses.build("multi_similarity"))
    found = WithUnlabelled(bare, term)(x, LABELS, ids=IDS, clusters=clusters)
    expected = bare(x[KNOWN], LABELS[KNOWN]) + term.loss(x[~KNOWN], clusters[~KNOWN])
    torch.testing.assert_close(found, expected)
    taught = SelfTaught(F, wide=5, decay=0.9).double().eval()
    loss = WithUnlabelled(bare, taught)
    features, teacher = rows(1, F), rows(2, F)
    value = loss(x, LABELS, ids=IDS, features=features, teacher_features=teacher, teacher=x)
    own = taught(x[~KNOWN], IDS[~KNOWN], features=features[~KNOWN], teacher_features=teacher[~KNOWN])
    torch.testing.assert_close(value, bare(x[KNOWN], LABELS[KNOWN]) + own)
    assert teacher_decay(loss) == 0.9
    assert teacher_decay(WithUnlabelled(bare, taught, weight=0.0)) is None
    asked = {key for key in ("ids", "features", "teacher_features", "clusters") if loss.asks(key)}
    assert asked == {"ids", "features", "teacher_features"}
    assert WithUnlabelled(bare, term).asks("clusters")


def test_all_parameters_are_in_one_group_each():
    proxies = losses.build("proxy_anchor", num_classes=3, embedding_dim=D)
    clusters = OfClusters(losses.build("proxy_anchor", num_classes=7, embedding_dim=D))
    groups = WithUnlabelled(proxies, clusters).param_groups(0.1)
    assert [(group["name"], len(group["params"][0])) for group in groups] == [
        ("proxies", 3),
        ("term.proxies", 7),
    ]
    taught = WithUnlabelled(NoLabels(), SelfTaught(F, wide=5)).param_groups(0.1)
    assert [(group["name"], group["as_head"]) for group in taught] == [
        ("term.head.weight", True),
        ("term.head.bias", True),
    ]


def test_batches_of_one_kind_and_missing_inputs():
    loss = WithUnlabelled(losses.build("contrastive"), InfoNCE())
    x, labels = rows(0), torch.arange(B) // 2
    assert torch.equal(loss(x, labels), losses.build("contrastive")(x, labels))
    torch.testing.assert_close(loss(x, torch.full((B,), -1), ids=labels), InfoNCE()(x, labels))
    assert WithUnlabelled(NoLabels(), InfoNCE(), 0.0)(x, torch.full((B,), -1), ids=labels).item() == 0
    with pytest.raises(ValueError, match="need ids="):
        loss(x, LABELS)
    with pytest.raises(ValueError, match="need clusters="):
        OfClusters(losses.build("contrastive"))(x, labels)
