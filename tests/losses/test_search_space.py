from __future__ import annotations

import pytest

from nearkin import losses
from nearkin.losses import Choices, Range

# Thesis, Table 15: hyperparameter, range of search, number of steps, optimum found.
TABLE_15 = [
    ("multi_similarity", "margin", 11, 0.8),
    ("multi_similarity", "alpha", 50, 18.0),
    ("multi_similarity", "beta", 50, 76.0),
    ("multi_similarity", "epsilon", 11, 0.4),
    ("soft_triple", "margin", 11, 0.4),
    ("soft_triple", "scale", 50, 78.0),
    ("soft_triple", "tau", 11, 0.4),
    ("proxy_anchor", "margin", 11, 0.1),
    ("proxy_anchor", "alpha", 50, 32.0),
]


@pytest.mark.parametrize(("name", "keyword", "count", "found"), TABLE_15)
def test_the_grid_is_the_thesis_and_holds_what_it_found(name, keyword, count, found):
    points = losses.get(name).search_space[keyword].points()
    assert len(points) == count
    assert found in points
    assert max(points) == (100 if count == 50 else 1)


def test_soft_triples_gamma_covers_the_thesis_inverse():
    gamma = losses.get("soft_triple").search_space["gamma"]
    assert 1 / gamma.high == 1
    assert 1 / gamma.low == 100
    assert gamma.low < 1 / 58 < gamma.high


@pytest.mark.parametrize(
    ("values", "points"),
    [
        (Range(0.0, 1.0, step=0.4), [0.0, 0.4, 0.8]),
        (Range(1, 10, whole=True), list(range(1, 11))),
        (Range(1, 3, whole=True), [1, 2, 3]),
        (Range(1.0, 8.0, step=2, log=True), [1.0, 2.0, 4.0, 8.0]),
        (Choices("a", "b"), ["a", "b"]),
    ],
    ids=str,
)
def test_points(values, points):
    assert values.points() == points


def test_without_a_step_a_grid_has_eleven_points():
    assert Range(0.0, 5.0).points() == pytest.approx([0.5 * i for i in range(11)])
    assert Range(1e-5, 1.0, log=True).points() == pytest.approx([10 ** (-5 + i / 2) for i in range(11)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Range(1.0, 1.0), "low < high"),
        (lambda: Range(0.0, float("inf")), "both finite"),
        (lambda: Range(0.0, 1.0, log=True), "must be above 0 to search orders of magnitude"),
        (lambda: Range(0.0, 1.0, step=0.0), "step=0.0 must be above 0"),
        (lambda: Range(0.1, 1.0, step=0.5, log=True), "must be above 1"),
        (Choices, "nothing to choose from"),
    ],
)
def test_spaces_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", losses.names())
def test_small_numbers_are_searched_by_their_logarithm(name):
    for keyword, values in losses.get(name).search_space.items():
        if isinstance(values, Range) and 0 < values.low <= 0.01:
            assert values.log, keyword
