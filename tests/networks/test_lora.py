from __future__ import annotations

import copy

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import execute, load_network, new_run

from nearkin import networks
from nearkin.networks.lora import LowRank, add_lora, held_still, merge_lora

VIT = {"name": "timm:vit_tiny_patch16_224", "size": 16, "img_size": 16, "depth": 2, "in_chans": 3}


@pytest.fixture
def vit():
    keywords = {key: value for key, value in VIT.items() if key != "name"}
    return networks.build(VIT["name"], embedding_dim=8, **keywords).eval()


def test_the_network_starts_as_it_was(vit):
    images = torch.rand(2, 3, 16, 16)
    before = vit(images)
    assert add_lora(vit, 4) == 8  # qkv, projection and two layers of an MLP, in two blocks
    assert torch.equal(vit(images), before)


def test_only_additions_and_the_head_are_trained(vit):
    add_lora(vit, 4)
    trained = {name for name, parameter in vit.named_parameters() if parameter.requires_grad}
    assert trained == {
        name for name, _ in vit.named_parameters() if name.startswith("head.") or name.endswith((".A", ".B"))
    }
    groups = vit.param_groups(1e-3)
    assert {p for group in groups for p in group["params"]} == {
        p for p in vit.parameters() if p.requires_grad
    }
    assert not held_still(vit) & {p for p in vit.parameters() if p.requires_grad}


def test_merged_it_gives_the_same_and_has_its_old_names(vit):
    names, images = list(vit.state_dict()), torch.rand(2, 3, 16, 16)
    add_lora(vit, 4)
    for module in vit.modules():
        if isinstance(module, LowRank):
            torch.nn.init.normal_(module.B, std=0.1)
    adapted = vit(images)
    weight = vit.backbone.blocks[0].attn.qkv.weight.detach().clone()
    merge_lora(vit)
    assert set(vit.state_dict()) == set(names)
    torch.testing.assert_close(vit(images), adapted)
    torch.testing.assert_close(vit.backbone.blocks[0].attn.qkv.weight, weight)


def test_the_seed_draws_it_and_nothing_else(vit):
    other, state = copy.deepcopy(vit), torch.get_rng_state()
    add_lora(vit, 2, seed=3)
    add_lora(other, 2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    for one, two in zip(vit.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_network_without_attention_is_refused():
    with pytest.raises(ValueError, match=r"network\.lora is for transformers"):
        add_lora(networks.build("convnet", embedding_dim=8), 4)


def test_a_run_with_it_moves_less_goes_on_and_can_be_loaded(small_recipe, tmp_path):
    values = small_recipe | {
        "network": VIT | {"embedding_dim": 8, "lora": 2},
        "training": {"epochs": 2},
        "data": small_recipe["data"] | {"transform": "resized_crop"},
    }
    whole = execute(new_run(tmp_path / "whole", values))
    with pytest.raises(Interruption):
        execute(new_run(tmp_path / "run", values), StopAfterEpoch(1))
    again = execute(new_run(tmp_path / "run", values))
    assert again.result.to_dict() == whole.result.to_dict()
    network = load_network(whole)
    assert not any(isinstance(module, LowRank) for module in network.modules())
    start = new_run(tmp_path / "start", values).recipe.build().embedder.network.state_dict()
    moved = {name for name, weight in network.state_dict().items() if not torch.equal(weight, start[name])}
    assert moved <= {n for n in start if n.startswith("head.") or (".blocks." in n and n.endswith(".weight"))}
    assert any(name.endswith("qkv.weight") for name in moved)
    change = (
        network.state_dict()["backbone.blocks.0.attn.qkv.weight"] - start["backbone.blocks.0.attn.qkv.weight"]
    )
    assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 2
