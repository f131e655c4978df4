from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from nearkin import networks
from nearkin.networks.base import Backbone
from nearkin.networks.weights import load_imagenet, read_state


@pytest.fixture
def source():
    return networks.build("convnet", embedding_dim=4, seed=9)


def rebuilt(path):
    return networks.build("convnet", embedding_dim=4, weights=path)


def same_backbone(one, other):
    state = other.backbone.state_dict()
    return all(value.equal(state[key]) for key, value in one.backbone.state_dict().items())


def test_files_of_every_kind_go_round(source, tmp_path):
    state = source.backbone.state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pth")
    torch.save(
        {"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3},
        tmp_path / "c.pth",
    )
    for name in ("a.safetensors", "b.pth", "c.pth"):
        assert same_backbone(rebuilt(tmp_path / name), source)
    assert not same_backbone(networks.build("convnet", embedding_dim=4), source)


def test_a_mismatch_lists_what_is_missing_too_much_or_of_another_shape(source, tmp_path):
    state = source.backbone.state_dict()
    state["0.0.weights"] = state.pop("0.0.weight")
    state["1.0.weight"] = state["1.0.weight"][:5]
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="do not fit the network") as caught:
        rebuilt(tmp_path / "a.pth")
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[1:] == [
        "1 missing:",
        "0.0.weight",
        "1 not in the network:",
        "0.0.weights",
        "1 of another shape:",
        "1.0.weight (5, 16, 3, 3) instead of (32, 16, 3, 3)",
    ]


def test_a_long_list_is_cut(source, tmp_path):
    torch.save({f"x{number}": torch.zeros(1) for number in range(30)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"30 not in the network:\n(.*\n){8}.*… and 22 more"):
        rebuilt(tmp_path / "a.pth")


def test_pickles_are_not_run(tmp_path):
    class Surprise:
        def __reduce__(self):
            return (print, ("executed",))

    torch.save({"weight": Surprise()}, tmp_path / "a.pth")
    with pytest.raises(Exception, match="(?i)weights.only"):
        read_state(tmp_path / "a.pth")


def test_what_is_no_table_of_tensors(tmp_path):
    torch.save([1, 2], tmp_path / "a.pth")
    with pytest.raises(ValueError, match="holds list, not a table of tensors"):
        read_state(tmp_path / "a.pth")
    with pytest.raises(FileNotFoundError, match="no weights at .*missing.pth"):
        networks.build("convnet", embedding_dim=4, weights=tmp_path / "missing.pth")


def test_imagenet_weights_come_from_the_backbones_own_library(source):
    state = source.backbone.state_dict()
    fresh = networks.base.registry.build("convnet")
    with pytest.raises(ValueError, match="lenet has no ImageNet weights to download"):
        networks.build("lenet", embedding_dim=4, weights="imagenet")
    downloading = Backbone(fresh.module, 128, fresh.preprocessing, download_imagenet=lambda: state)
    load_imagenet(downloading, "convnet")
    assert all(value.equal(state[key]) for key, value in downloading.module.state_dict().items())


def test_a_failed_download_says_what_to_do():
    def offline():
        raise OSError("no route to host")

    fresh = networks.base.registry.build("convnet")
    with pytest.raises(
        ConnectionError, match="weights of convnet .no route to host.* give their path: --weights FILE"
    ):
        load_imagenet(Backbone(fresh.module, 128, fresh.preprocessing, download_imagenet=offline), "convnet")
