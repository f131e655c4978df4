from __future__ import annotations

from nearkin import losses


def test_everything_a_person_needs():
    about = losses.describe("multi_similarity")
    assert about.name == "multi_similarity"
    assert about.class_name == "MultiSimilarity"
    assert about.summary.endswith(".")
    assert "\n" not in about.summary
    assert "log(1 + Σ_{P_i}" in about.equation
    assert "CVPR 2019" in about.source
    assert about.when_to_use
    assert "``proxy_anchor``" in about.relations
    assert about.defaults == {
        "alpha": 2.0,
        "beta": 50.0,
        "margin": 0.5,
        "epsilon": 0.1,
        "mining": "multi_similarity",
    }
    assert about.arguments["margin"].startswith("λ")
    assert about.example.startswith(">>>")
    assert not about.needs_classes


def test_all_are_there():
    assert set(losses.names()) == {
        "adaface",
        "angular",
        "arcface",
        "circle",
        "contrastive",
        "cosface",
        "curricularface",
        "direction_multi_similarity",
        "direction_proxy_nca",
        "direction_triplet",
        "fast_ap",
        "histogram",
        "info_nce",
        "lifted_structure",
        "margin",
        "multi_similarity",
        "nca",
        "npair",
        "pnp",
        "proxy_anchor",
        "proxy_gml",
        "proxy_nca",
        "proxy_nca_pp",
        "proxy_repulsion",
        "ranked_list",
        "recall_at_k",
        "smooth_ap",
        "soft_triple",
        "softmax",
        "sub_center_arcface",
        "sup_ap",
        "supcon",
        "triplet",
        "tuplet_margin",
    }


def test_defaults_are_those_of_the_equations():
    """LOSSES.md and LOSSES2.md are the only sources of values, and papers for what these do not have."""
    published = {
        "contrastive": {"margin": 0.5},
        "triplet": {"margin": 0.1, "mining": "semi_hard"},
        "lifted_structure": {"margin": 0.5, "positive_scale": 2.0, "negative_scale": 40.0, "mining": "hard"},
        "npair": {"l2": 0.02},
        "margin": {"margin": 0.2, "beta": 1.2, "learn_beta": True, "nu": 0.0, "mining": "distance_weighted"},
        "multi_similarity": {"alpha": 2.0, "beta": 50.0, "margin": 0.5, "epsilon": 0.1},
        "nca": {"temperature": 1.0},
        "softmax": {"normalized": False},
        "proxy_nca": {"scale": 9.0},
        "proxy_nca_pp": {"temperature": 1 / 9},
        "arcface": {"margin_degrees": 28.6, "scale": 64.0},
        "cosface": {"margin": 0.35, "scale": 64.0},
        "sub_center_arcface": {"margin_degrees": 28.6, "scale": 64.0, "proxies_per_class": 3},
        "curricularface": {"margin_degrees": 28.6, "scale": 64.0, "momentum": 0.01},
        "adaface": {"margin": 0.4, "scale": 64.0, "concentration": 0.333},
        "soft_triple": {"scale": 20.0, "gamma": 0.1, "margin": 0.01, "tau": 0.2, "proxies_per_class": 10},
        "proxy_anchor": {"alpha": 32.0, "margin": 0.1},
        "proxy_gml": {"proxies_per_class": 12, "ratio": 0.05, "regularization": 0.3},
        "proxy_repulsion": {"alpha": 32.0, "margin": 0.1, "through_samples": True, "relations": 0.0},
        "direction_triplet": {"margin": 0.1, "gamma": 0.3},
        "direction_multi_similarity": {"gamma": 0.3},
        "direction_proxy_nca": {"scale": 9.0, "gamma": 0.3},
        "angular": {"angle_degrees": 45.0},
        "circle": {"margin": 0.4, "scale": 80.0},
        "fast_ap": {"bins": 10},
        "histogram": {"bins": 200},
        "info_nce": {"temperature": 0.05, "symmetric": True},
        "pnp": {"form": "Dq", "temperature": 0.01, "alpha": 4.0},
        "ranked_list": {"margin": 0.4, "alpha": 1.2, "temperature": 10.0},
        "recall_at_k": {"ks": (1, 2, 4, 8, 16), "temperature": 0.01, "cut_temperature": 1.0},
        "smooth_ap": {"temperature": 0.01},
        "sup_ap": {"temperature": 0.01, "slope": 100.0, "shift": 0.05, "calibration": 1.0},
        "supcon": {"temperature": 0.1},
        "tuplet_margin": {"margin_degrees": 5.73, "scale": 64.0},
    }
    assert set(published) == set(losses.names())
    for name, values in published.items():
        assert values.items() <= losses.describe(name).defaults.items(), name


def test_a_loss_shows_its_keywords():
    assert repr(losses.build("contrastive")) == "Contrastive(margin=0.5, metric='cosine', mining='all')"
    assert "num_classes=3" in repr(losses.build("proxy_anchor", num_classes=3, embedding_dim=2))
    assert "beta=1.2, " in repr(losses.build("margin"))
