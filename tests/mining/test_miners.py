"""Every miner selects exactly the sets that LOSSES.md defines."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from nearkin import mining
from nearkin.mining import semi_hard
from nearkin.mining.base import FAR, as_float, only, places_of
from nearkin.mining.random import _invert


class Scene:
    """Random similarities of a batch with unequal classes, its masks, and the labels as a list."""

    def __init__(self, labels: list[int], dim: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
        z = torch.nn.functional.normalize(x)
        self.labels = labels
        self.S = (z @ z.T).to(dtype)
        y = torch.tensor(labels)
        same = y[:, None] == y
        self.negative = ~same
        self.positive = same.clone().fill_diagonal_(False)
        self.embedding_dim = dim

    def mine(self, miner, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        return miner(
            self.S, self.positive, self.negative, embedding_dim=self.embedding_dim, generator=generator
        )


LABELS = [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 0]


def as_set(triplets: mining.Triplets) -> set[tuple[int, int, int]]:
    listed = list(zip(*(index.tolist() for index in triplets), strict=True))
    assert len(listed) == len(set(listed))
    return set(listed)


def positives_of(labels, i):
    return [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]


def negatives_of(labels, i):
    return [j for j in range(len(labels)) if labels[j] != labels[i]]


def naive_hard(S, labels):
    return {
        (
            a,
            min(positives_of(labels, a), key=lambda j: S[a][j]),
            max(negatives_of(labels, a), key=lambda j: S[a][j]),
        )
        for a in range(len(labels))
        if positives_of(labels, a) and negatives_of(labels, a)
    }


def naive_semi_hard(S, labels):
    found = set()
    for a in range(len(labels)):
        for p in positives_of(labels, a):
            farther = [n for n in negatives_of(labels, a) if S[a][n] < S[a][p]]
            if farther:
                found.add((a, p, max(farther, key=lambda n: S[a][n])))
    return found


batches = st.lists(st.integers(0, 3), min_size=1, max_size=14)


def test_names():
    assert mining.names() == ["all", "distance_weighted", "hard", "multi_similarity", "random", "semi_hard"]


@given(labels=batches, seed=st.integers(0, 999))
def test_hard(labels, seed):
    view = Scene(labels, seed=seed)
    assert as_set(view.mine(mining.Hard())) == naive_hard(view.S.tolist(), labels)


@pytest.mark.parametrize("few", [0, 10**9], ids=["sorted rows", "along rows"])
@given(labels=batches, seed=st.integers(0, 999))
def test_semi_hard(few, labels, seed):
    view = Scene(labels, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(semi_hard, "_FEW_POSITIVES", few)
        patch.setattr(semi_hard, "_CHUNK", 3)
        assert as_set(view.mine(mining.SemiHard())) == naive_semi_hard(view.S.tolist(), labels)


@given(labels=batches, seed=st.integers(0, 999), epsilon=st.sampled_from([0.0, 0.1, 0.7]))
def test_multi_similarity(labels, seed, epsilon):
    view = Scene(labels, seed=seed)
    masks = view.mine(mining.MultiSimilarity(epsilon))
    S = view.S.tolist()
    for i in range(len(labels)):
        lowest = min((S[i][p] for p in positives_of(labels, i)), default=float("inf"))
        highest = max((S[i][n] for n in negatives_of(labels, i)), default=-float("inf"))
        hard_positives = [p for p in positives_of(labels, i) if S[i][p] < highest + epsilon]
        hard_negatives = [n for n in negatives_of(labels, i) if S[i][n] > lowest - epsilon]
        assert masks.positive[i].nonzero().squeeze(1).tolist() == hard_positives
        assert masks.negative[i].nonzero().squeeze(1).tolist() == hard_negatives


def test_all_selects_everything():
    view = Scene(LABELS)
    masks = view.mine(mining.All())
    assert torch.equal(masks.positive, view.positive)
    assert torch.equal(masks.negative, view.negative)


@pytest.mark.parametrize("miner", [mining.Random(), mining.DistanceWeighted()], ids=["random", "weighted"])
def test_one_negative_for_each_positive_pair(miner):
    view = Scene(LABELS)
    anchor, positive, negative = view.mine(miner)
    assert torch.stack([anchor, positive], dim=1).tolist() == view.positive.nonzero().tolist()
    assert view.negative[anchor, negative].all()


def expected_chances(view, anchor: int, d: int) -> dict[int, float]:
    """1/q(D) in plain numbers; d is small here, so that nothing underflows."""
    weights = {}
    for n in negatives_of(view.labels, anchor):
        D = max((2 - 2 * view.S[anchor, n].item()) ** 0.5, 0.5)
        if D <= 1.4:
            weights[n] = 1 / (D ** (d - 2) * (1 - D * D / 4) ** ((d - 3) / 2))
    if not weights:
        weights = dict.fromkeys(negatives_of(view.labels, anchor), 1.0)
    total = sum(weights.values())
    return {n: weight / total for n, weight in weights.items()}


@pytest.mark.parametrize("kind", ["random", "distance_weighted"])
def test_chances_by_chi_square(kind):
    labels = [0] * 2 + [1] * 6 + [2] * 5
    view = Scene(labels, dim=5, seed=4)
    rows = 4000
    many = view.positive[:1].clone().repeat(rows, 1)  # the same anchor many times: many independent draws
    drawn = mining.build(kind)(
        view.S[:1].repeat(rows, 1),
        many,
        view.negative[:1].repeat(rows, 1),
        embedding_dim=5,
        generator=torch.Generator().manual_seed(7),
    ).negative
    counts = torch.bincount(drawn, minlength=len(labels))
    uniform = dict.fromkeys(negatives_of(labels, 0), 1 / 11)
    chances = uniform if kind == "random" else expected_chances(view, 0, 5)
    assert counts.sum() == rows
    assert set(counts.nonzero().squeeze(1).tolist()) <= set(chances)
    observed = [counts[n].item() for n in chances]
    assert stats.chisquare(observed, [rows * chance for chance in chances.values()]).pvalue > 1e-3


def test_distance_weights_are_those_of_the_paper():
    view = Scene(LABELS, dim=5)
    weights = mining.DistanceWeighted().weights(view.S, view.negative, 5)
    for anchor in range(len(LABELS)):
        chances = expected_chances(view, anchor, 5)
        row = weights[anchor] / weights[anchor].sum()
        assert row.nonzero().squeeze(1).tolist() == sorted(chances)
        for n, chance in chances.items():
            assert row[n].item() == pytest.approx(chance, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_anchor_underflows_in_many_dimensions(dtype):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64).repeat_interleave(4)
    centre = torch.randn(1, 512, generator=generator)
    near = centre + 0.7 * torch.randn(128, 512, generator=generator)  # half of the batch is much denser
    z = torch.nn.functional.normalize(torch.cat([near, torch.randn(128, 512, generator=generator)]))
    same = labels[:, None] == labels
    weights = mining.DistanceWeighted().weights((z @ z.T).to(dtype), ~same, 512)
    assert torch.isfinite(weights).all()
    assert (weights.amax(dim=1) == 1).all()
    assert (weights[same] == 0).all()


def test_an_anchor_with_all_negatives_out_of_reach_draws_uniformly():
    S = torch.tensor([[1.0, 0.9, -0.9, -0.5, -0.7]])
    same = torch.tensor([[False, True, False, False, False]])
    other = torch.tensor([[False, False, True, True, True]])
    assert mining.DistanceWeighted().weights(S, other, 512).tolist() == [[0, 0, 1, 1, 1]]
    assert (
        len(mining.DistanceWeighted()(S, same, other, embedding_dim=512, generator=torch.Generator())[0]) == 1
    )


@pytest.mark.parametrize("name", mining.names())
@pytest.mark.parametrize("labels", [[0], [0, 0, 0], [0, 1, 2]], ids=["one", "one class", "no positives"])
def test_poor_batches_give_no_triplet(name, labels):
    view = Scene(labels)
    mined = view.mine(mining.build(name))
    if isinstance(mined, mining.Triplets):
        assert all(len(index) == 0 for index in mined)
    else:
        assert not (mined.positive.any(dim=1) & mined.negative.any(dim=1)).any()


@pytest.mark.parametrize("name", mining.names())
def test_inputs_are_left_alone_and_draws_repeat(name):
    view = Scene(LABELS, dtype=torch.float32)
    before = [tensor.clone() for tensor in (view.S, view.positive, view.negative)]
    first, second = view.mine(mining.build(name)), view.mine(mining.build(name))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(map(torch.equal, before, (view.S, view.positive, view.negative)))


@pytest.mark.parametrize("name", mining.names())
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_any_float_dtype(name, dtype):
    mined = Scene(LABELS, dtype=dtype).mine(mining.build(name))
    assert all(index.dtype in (torch.bool, torch.int64) for index in mined)


@pytest.mark.parametrize("name", mining.names())
def test_references_need_not_be_as_many(name):
    view = Scene(LABELS)
    mined = mining.build(name)(
        view.S[:3], view.positive[:3], view.negative[:3], embedding_dim=6, generator=torch.Generator()
    )
    masks = mining.as_masks(mined, view.S[:3].shape)
    assert not (masks.positive & ~view.positive[:3]).any()
    assert not (masks.negative & ~view.negative[:3]).any()
    assert masks.positive.any()


def test_triplets_as_masks_count_a_shared_pair_once():
    triplets = mining.Triplets(*torch.tensor([[0, 0], [1, 1], [2, 3]]))
    masks = mining.as_masks(triplets, torch.Size([2, 4]))
    assert masks.positive.tolist() == [[False, True, False, False], [False] * 4]
    assert masks.negative.tolist() == [[False, False, True, True], [False] * 4]


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("multi_similarity", {"epsilon": -0.1}, "epsilon=-0.1"),
        ("distance_weighted", {"nearest": 0.0}, "nearest=0.0"),
        ("distance_weighted", {"nearest": 1.5}, "farthest=1.4"),
        ("semi_hard", {"margin": 1}, "no keyword 'margin'"),
        ("semihard", {}, "did you mean semi_hard"),
    ],
)
def test_wrong_values_are_refused(name, keywords, message):
    with pytest.raises(ValueError, match=message):
        mining.build(name, **keywords)


@given(rows=st.integers(0, 9), columns=st.integers(1, 17), first=st.integers(0, 2), seed=st.integers(0, 99))
@example(rows=8, columns=3, first=0, seed=0)  # whole eights, which begin between two of them
def test_places_are_those_of_nonzero(rows, columns, first, seed):
    """Also where the mask is a part of another one, and its entries cannot be looked at eight at a time."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(first + rows, columns, generator=generator)[first:] < 0.3
    for view in (mask, (torch.rand(3 + rows, columns, generator=generator) < 0.3)[3:], mask.T.contiguous().T):
        assert torch.stack(places_of(view), dim=1).tolist() == view.nonzero().tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_only_keeps_values_to_the_last_digit(dtype):
    values = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = torch.arange(50) % 3 == 0
    for far in (FAR, -FAR):
        for given_mask in (mask, mask.to(dtype)):
            assert torch.equal(only(given_mask, values, far), torch.where(mask, values, far))


def test_no_draw_falls_beyond_the_last_weight():
    """The largest uniform number there is, many totals, and columns without weight at the end."""
    weights = torch.rand(5000, 6, generator=torch.Generator().manual_seed(0))
    weights[:, 3:] = 0
    for largest in (1 - 2.0**-24, 0.0):
        drawn = _invert(weights.cumsum(dim=1), torch.full((5000,), largest))
        assert (weights.gather(1, drawn.unsqueeze(1)) > 0).all()
    doubles = weights.double()
    assert (_invert(doubles.cumsum(dim=1), torch.full((5000,), 1 - 2.0**-24).double()) < 3).all()


def test_far_negatives_beyond_a_right_angle():
    """With a larger reach 1/q rises again towards the other pole, and is exact there too."""
    S = torch.tensor([[1.0, 0.9, -0.3, 0.1, -0.9]], dtype=torch.float64)
    other = torch.tensor([[False, False, True, True, True]])
    weights = mining.DistanceWeighted(farthest=1.7).weights(S, other, 64)
    squared = 2 - 2 * S[0, 2:4]
    exact = squared ** (-62 / 2) * (1 - squared / 4) ** (-61 / 2)
    torch.testing.assert_close(weights[0, 2:4] / weights[0, 2:4].sum(), exact / exact.sum())
    assert weights[0, [0, 1, 4]].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("nearest", "farthest"), [(0.5, 1.4), (0.8, 1.1)])
def test_the_reach_of_distance_weighted_mining(nearest, farthest):
    """Distances just inside and outside of it, and distances that count as the nearest one does."""
    D = torch.tensor([0.1, nearest - 0.01, nearest, nearest + 0.01, farthest - 0.01, farthest + 0.01, 1.9])
    S = (1 - D.double().square() / 2).unsqueeze(0)
    negative = torch.ones_like(S, dtype=torch.bool)
    (weights,) = mining.DistanceWeighted(nearest=nearest, farthest=farthest).weights(S, negative, 8)
    torch.testing.assert_close(weights[0], weights[2])
    torch.testing.assert_close(weights[1], weights[2])
    assert weights[3] < weights[2]
    assert (weights > 0).tolist() == [True] * 5 + [False] * 2


@pytest.mark.parametrize("columns", [100, 33])
def test_chances_over_several_blocks_of_columns(columns):
    """Which block is drawn says nothing about which of its columns."""
    rows = 20_000
    negative = torch.arange(columns) > 0
    drawn = mining.build("random")(
        torch.zeros(1, columns).expand(rows, -1),
        (~negative).expand(rows, -1),
        negative.expand(rows, -1),
        generator=torch.Generator().manual_seed(3),
    ).negative
    counts = torch.bincount(drawn, minlength=columns)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:].tolist()).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_a_mask_of_numbers_keeps_its_numbers(dtype):
    mask = torch.tensor([[1, 0], [0, 1]])
    found = as_float(mask.to(dtype), torch.zeros(1, dtype=torch.float32))
    assert found.dtype == torch.float32
    assert found.tolist() == mask.tolist()


def test_multi_similarity_of_half_precision_compares_in_full():
    """In bfloat16 200/256 + 0.099 would be 225/256, and the positive there no harder than the bound."""
    S = torch.tensor([[256, 225, 200]], dtype=torch.bfloat16) / 256
    positive, negative = torch.tensor([[False, True, False]]), torch.tensor([[False, False, True]])
    masks = mining.MultiSimilarity(epsilon=0.099)(S, positive, negative)
    assert masks.positive.tolist() == [[False, True, False]]


def test_a_miner_is_built_from_where_it_is_defined():
    assert mining.build("nearkin.mining:MultiSimilarity", epsilon=0.3) == mining.MultiSimilarity(epsilon=0.3)
    with pytest.raises(ValueError, match="there is no miner nearkin.mining:Nothing"):
        mining.build("nearkin.mining:Nothing")
