"""What docs/errata.md says about equations and tables, derived again."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize, softmax, softplus

from nearkin import losses
from nearkin.tournament.published import published
from nearkin.tournament.ranking import rank_published

PAGE = (Path(__file__).parents[1] / "docs/errata.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recall() -> dict[tuple[str, str, int, str], float]:
    """The thesis's Recall@1 in percent, by data set, network, size and loss."""
    return {
        (
            one.experiment.dataset,
            one.experiment.network,
            one.experiment.embedding_dim,
            one.contender,
        ): round(100 * one.scores["recall_at_1"], 2)
        for one in published("thesis_all")
    }


@pytest.fixture
def vectors() -> torch.Tensor:
    return torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_survey_19_lost_an_exponential_and_thesis_2_28_did_not(vectors):
    s = vectors[0].clone().requires_grad_()  # similarities to 5 proxies, the first one being the own
    (-(s[0].exp() / s[1:].exp().sum()).log()).backward()
    assert s.grad[0] == pytest.approx(-1)
    torch.testing.assert_close(s.grad[1:], softmax(s[1:], 0).detach())
    assert not torch.allclose(s.grad[1:], (s[1:].exp() / s[1:].sum()).detach())  # (19) as printed


def test_survey_20_has_its_exponentials_and_a_wrong_sign(vectors):
    alpha, delta, proxies = 2.0, 0.1, 7
    s = vectors[0].clone().requires_grad_()
    h = (alpha * (s + delta)).exp()
    (torch.log(1 + h.sum()) / proxies).backward()
    expected = (alpha * h / (1 + h.sum()) / proxies).detach()
    torch.testing.assert_close(s.grad, expected)  # (20) with the other sign
    printed = alpha * (s + delta) / (1 + h.sum()) / proxies
    assert not torch.allclose(s.grad, printed.detach())  # thesis (2.32)


def test_survey_6_is_the_gradient_of_raw_vectors_only(vectors):
    labels = torch.tensor([0, 0, 1])
    raw = vectors[:3].clone().requires_grad_()
    losses.build("triplet", metric="euclidean_raw", mining="all", margin=100.0)(raw, labels).backward()
    a, p, n = raw.detach()
    by_a, by_p, by_n = 2 * (n - p), 2 * (p - a), 2 * (a - n)
    with_p_as_anchor = (2 * (a - p), 2 * (n - a), 2 * (p - n))  # the batch's other triplet
    expected = torch.stack([by_a, by_p, by_n]) + torch.stack(
        [with_p_as_anchor[0], with_p_as_anchor[1], with_p_as_anchor[2]]
    )
    torch.testing.assert_close(raw.grad, expected / 2)
    unit = vectors[:3].clone().requires_grad_()
    losses.build("triplet", metric="squared_euclidean", mining="all", margin=100.0)(unit, labels).backward()
    radial = (unit.grad * unit.detach()).sum(1)
    torch.testing.assert_close(radial, torch.zeros_like(radial))  # tangential


def test_n_pair_with_one_negative_is_a_softplus(vectors):
    a, p, n = vectors[:3]
    value = losses.build("npair", l2=0.0, pairs="one_per_class")(
        torch.stack([a, p, n, n]), torch.tensor([0, 0, 1, 1]), reduction="none"
    )
    smooth = softplus(a @ n - a @ p)
    assert value[0] == pytest.approx(2 * smooth.item())  # times B / number of anchors
    assert smooth != torch.relu(a @ n - a @ p + 0.1)


def test_survey_32_holds_where_31_does_and_nowhere_else(vectors):
    a, p, n = normalize(vectors[:3])
    axis = normalize(a - p, dim=0)
    orthogonal = normalize(n - (n @ axis) * axis, dim=0)  # f_n·f_a = f_n·f_p

    def cosine(n):
        return torch.cosine_similarity(n - a, p - a, dim=0)

    def printed(n):
        return (1 - p @ a) / ((n - a).norm() * (p - a).norm())

    centre = (a + p) / 2
    assert ((centre - orthogonal) @ (a - p)).abs() < 1e-12  # (31)
    torch.testing.assert_close(cosine(orthogonal), printed(orthogonal))
    assert (cosine(n) - printed(n)).abs() > 1e-3
    in_general = (n @ p - n @ a - p @ a + 1) / ((n - a).norm() * (p - a).norm())
    torch.testing.assert_close(cosine(n), in_general)


def test_a_constant_added_to_a_row_has_no_effect_in_survey_29(vectors):
    torch.testing.assert_close(softmax(vectors, 1), softmax(vectors + 1.0, 1))


def test_a_temperature_outside_of_the_exponent_cancels_in_survey_17(vectors):
    e = (-vectors[0].abs()).exp()
    torch.testing.assert_close((e[0] / 3) / (e / 3).sum(), e[0] / e.sum())


def test_tanh(vectors):
    torch.testing.assert_close(torch.tanh(vectors), 2 * torch.sigmoid(2 * vectors) - 1)
    assert not torch.allclose(torch.tanh(vectors), 2 * torch.sigmoid(vectors) - 1)


def test_sentences_that_the_tables_contradict(recall):
    def at(network: str, size: int, loss: str, data: str = "cub200") -> float:
        return recall[data, network, size, loss]

    assert at("bninception", 512, "soft_triple") == 66.76 > 66.12
    assert at("bninception", 512, "multi_similarity") == 65.24 < 65.61
    assert (at("resnet50", 128, "lifted_structure"), at("resnet50", 128, "triplet")) == (60.16, 60.48)
    assert at("resnet50", 128, "margin") - at("resnet50", 128, "npair") == pytest.approx(4.09)
    assert at("resnet50", 128, "margin") - at("resnet50", 128, "lifted_structure") < 3  # as it says
    assert (at("googlenet", 128, "multi_similarity"), at("googlenet", 128, "proxy_nca")) == (55.66, 55.77)
    for size, ahead in ((512, 1.62), (1024, 0.94)):
        gap = at("resnet50", size, "multi_similarity", "cars196") - at(
            "resnet50", size, "proxy_anchor", "cars196"
        )
        assert gap == pytest.approx(ahead)


def test_networks_on_cub(recall):
    def mean(network: str) -> float:
        return statistics.fmean(
            v for (data, net, *_), v in recall.items() if (data, net) == ("cub200", network)
        )

    assert round(mean("bninception") - mean("googlenet"), 2) == 4.07
    assert round(mean("resnet50") - mean("googlenet"), 2) == 5.83
    exceptions = {
        (size, loss)
        for (data, network, size, loss), value in recall.items()
        if (data, network) == ("cub200", "resnet50") and value < recall[data, "bninception", size, loss]
    }
    assert exceptions == {(128, "lifted_structure"), (1024, "soft_triple")}


def test_ranks_that_are_named(recall):
    def rank(data: str, network: str, size: int, loss: str) -> int:
        own = recall[data, network, size, loss]
        return 1 + sum(v > own for (d, n, s, _), v in recall.items() if (d, n, s) == (data, network, size))

    assert [rank("cars196", "googlenet", size, "arcface") for size in (512, 1024)] == [3, 6]
    row = next(one for one in rank_published("thesis").ranking.rows if one.contender == "soft_triple")
    assert max(row.ranks.values()) == 5
    assert round(5 - row.average, 2) == 1.83


def test_58_is_not_on_its_grid_and_what_cars_holds():
    assert 58 not in range(0, 101, 10)
    assert 8054 + 8131 == 16185
    assert 98 + 98 == 196
    assert math.floor(16185 / 196) == 82
    assert math.floor(16815 / 196) != 82


def test_every_number_that_is_tested_here_stands_on_the_page():
    for number in (
        *("4.09", "4.07", "5.83", "0.94", "1.62", "60.16", "60.48", "61.60", "67.42", "67.44"),
        *("66.12", "66.76", "65.61", "65.24", "55.66", "55.77", "64.38", "93.31", "16,815", "16,185", "1.83"),
    ):
        assert number in PAGE, number


def test_the_page_quotes_the_seeds(shared):
    """What stands in quotation marks is there, word by word."""
    seeds = " ".join(
        " ".join((shared / "seeds" / f"{name}.txt").read_text(encoding="utf-8").split())
        for name in ("survey", "thesis")
    )
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    quoted = [text for line in rows for text in re.findall(r'(?<!=)"([^"=]+)"', line)]
    assert len(quoted) > 8
    for text in quoted:
        assert text in seeds or text == "≠ 0", text
