"""Who proposed a loss: authors as in the seeds' own references, where these name them."""

from __future__ import annotations

import re

import pytest

from nearkin import losses

# Loss → its paper's title as in the reference lists of the two documents.
PAPERS = {
    "arcface": "Arcface: Additive angular margin loss for deep face recognition",
    "direction_multi_similarity": "Moving in the Right Direction: A Regularization for Deep Metric Learning",
    "direction_proxy_nca": "Moving in the Right Direction: A Regularization for Deep Metric Learning",
    "direction_triplet": "Moving in the Right Direction: A Regularization for Deep Metric Learning",
    "fast_ap": "Deep metric learning to rank",
    "lifted_structure": "Deep metric learning via lifted structured feature embedding",
    "margin": "Sampling matters in deep embedding learning",
    "multi_similarity": "Multi-similarity loss with general pair weighting for deep metric learning",
    "nca": "Neighbourhood Components Analysis",
    "npair": "Improved deep metric learning with multi-class n-pair loss objective",
    "proxy_anchor": "Proxy anchor loss for deep metric learning",
    "proxy_gml": "Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer Proxies",
    "proxy_nca": "No fuss distance metric learning using proxies",
    "proxy_nca_pp": "Proxynca++: Revisiting and revitalizing proxy neighborhood component analysis",
    "ranked_list": "Ranked list loss for deep metric learning",
    "soft_triple": "Softtriple loss: Deep metric learning without triplet sampling",
    "triplet": "Facenet: A unified embedding for face recognition and clustering",
    "tuplet_margin": "Deep metric learning with tuplet margin loss",
}


def flat(text: str) -> str:
    return re.sub(r"[\s*]+", " ", text).lower()


@pytest.mark.parametrize("loss", PAPERS)
def test_titles_and_first_authors_are_those_of_the_reference_lists(loss, shared):
    seeds = flat("".join((shared / "seeds" / f"{name}.txt").read_text() for name in ("survey", "thesis")))
    source, title = flat(losses.describe(loss).source), flat(PAPERS[loss])
    assert title in source
    (*_, author) = seeds[: seeds.index(title)].rpartition("- [")[2].partition("]")
    sentences = source[: source.index(title)].rstrip(" .").split(". ")
    assert sentences[-1].split(",")[0].split()[-1] in author


@pytest.mark.parametrize(("base", "number"), [("triplet", 33), ("multi_similarity", 34), ("proxy_nca", 35)])
def test_direction_losses_name_their_authors_and_equations(base, number):
    source = losses.describe(f"direction_{base}").source
    assert "Mohan, Sankaran, Fedorishin, Setlur, Govindaraju." in source
    assert f"Survey equation ({number})" in source


def test_proxy_gml_names_its_authors():
    assert "Zhu, Yang, Deng, Liu." in losses.describe("proxy_gml").source
