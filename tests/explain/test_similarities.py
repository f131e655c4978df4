from __future__ import annotations

import pytest

from nearkin.explain import PRINTED, LossChoice, differences, draw_similarities, measure_choice


def kinds(name: str, **keywords: str) -> dict[str, str]:
    return {change: one.kind for change, one in measure_choice(LossChoice(name), **keywords).alone.items()}


@pytest.fixture(scope="module")
def table():
    return {name: measure_choice(LossChoice(name)) for name in PRINTED}


def test_every_loss_of_table_1_reacts_as_its_equation_says(table):
    """From the derivatives: a hinge switches, a softmax is smooth and knows differences only."""
    expected = {
        "contrastive": ("switch", "switch", "none", "none"),
        "triplet": ("switch", "none", "none", "switch"),
        "lifted_structure": ("smooth", "none", "smooth", "switch"),
        "npair": ("smooth", "none", "smooth", "smooth"),
        "multi_similarity": ("smooth", "smooth", "smooth", "none"),
    }
    for name, measured in table.items():
        assert tuple(one.kind for one in measured.alone.values()) == expected[name], name


def test_mining_adds_what_the_loss_alone_does_not_look_at(table):
    assert table["multi_similarity"].mined["P"].kind == "switch"
    assert table["triplet"].mined["N"].kind == "switch"
    assert table["contrastive"].mined is None
    assert table["npair"].mined is None


def test_the_differences_from_print_are_named(table):
    found = [sentence for measured in table.values() for sentence in differences(measured)]
    starts = [sentence.split(":")[0] for sentence in found]
    assert starts == ["triplet, N", "lifted_structure, P", "npair, P", "multi_similarity, P"]
    assert "measured ✗ alone, ✓ on/off with its mining" in found[-1]


@pytest.mark.parametrize(
    ("name", "anchor", "expected"),
    [
        ("proxy_nca", "sample", ("smooth", "none", "smooth", "none")),
        ("proxy_nca_pp", "sample", ("smooth", "none", "smooth", "smooth")),
        ("proxy_anchor", "proxy", ("smooth", "smooth", "smooth", "none")),
        ("proxy_anchor", "sample", ("smooth", "smooth", "none", "none")),
    ],
)
def test_proxy_losses_react_as_their_equations_say(name, anchor, expected):
    assert tuple(kinds(name, anchor=anchor).values()) == expected


def test_a_positive_pair_can_be_watched():
    assert kinds("contrastive", pair="positive") == dict.fromkeys(("own", "S", "N", "P"), "none")
    assert kinds("triplet", pair="positive")["N"] == "switch"
    assert kinds("proxy_nca", pair="positive")["P"] == "absent"


def test_the_picture_is_drawn(table, tmp_path):
    draw_similarities(list(table.values()), tmp_path / "similarities.png")
    assert (tmp_path / "similarities.png").stat().st_size > 10_000


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match="pair='negativ' must be one of"):
        kinds("triplet", pair="negativ")
    with pytest.raises(ValueError, match="Triplet has no proxies"):
        kinds("triplet", anchor="proxy")
