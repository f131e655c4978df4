"""A contributor adds one of each kind from a file outside the package; and the rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import nearkin
from nearkin import data, losses, mining, networks, sampling
from nearkin import registry as registry_module
from nearkin.data.transform_registry import registry as transforms
from nearkin.losses import modifiers
from nearkin.losses.base import registry as loss_registry
from nearkin.mining.base import _registry as miners
from nearkin.protocols import registry as protocols
from nearkin.recipe import Recipe
from nearkin.training import optimizers, schedules, trackers

SOURCE = Path(nearkin.__file__).parent
REGISTRIES = [
    loss_registry,
    modifiers.registry,
    data.registry,
    networks.registry,
    sampling.registry,
    miners,
    transforms,
    optimizers.registry,
    schedules.registry,
    protocols,
    trackers.registry,
]
PLUG_IN = '''
import torch
from torch import nn

from nearkin import data, losses, mining, networks, protocols, sampling
from nearkin.data import DataSet, Preprocessing, SampleSet, ImageArray
from nearkin.networks import Backbone
from nearkin.observer import Observer
from nearkin.training import optimizers, schedules, trackers

USED = []


@losses.register("own_loss")
class Own(losses.Triplet):
    """A triplet loss of one's own."""

    def forward(self, embeddings, labels, **keywords):
        USED.append("loss")
        return super().forward(embeddings, labels, **keywords)


@losses.modifiers.register("own_modifier")
class OwnModifier(losses.modifiers.Modifier):
    """A loss and the lengths of the features, which the training hands over because forward names them."""

    def __init__(self, loss, num_features, *, weight: float = 0.1):
        super().__init__(loss)
        self.num_features, self.weight = num_features, weight

    def forward(self, embeddings, labels, *, features, **keywords):
        assert features.shape == (len(embeddings), self.num_features)
        USED.append("modifier")
        return self.inner(embeddings, labels, keywords) + self.weight * features.square().mean()


def plain_loss(embeddings, labels, scale: float = 1.0):
    USED.append("loss")
    return scale * embeddings.square().mean()


@data.register("own_data")
def own_data(root=None, *, classes: int = 24) -> DataSet:
    USED.append("data")
    labels = torch.arange(classes).repeat_interleave(4)
    noise = torch.randint(0, 40, (len(labels), 1, 8, 8), generator=torch.Generator().manual_seed(0))
    pixels = (labels[:, None, None, None] * 8 + noise).to(torch.uint8)
    half = len(labels) // 2
    return DataSet(
        "own",
        SampleSet(ImageArray(pixels[:half]), [f"class {n:02}" for n in labels[:half].tolist()]),
        test=SampleSet(ImageArray(pixels[half:]), [f"class {n:02}" for n in labels[half:].tolist()]),
    )


@networks.register("own_network")
def own_network(*, size: int = 8, width: int = 6) -> Backbone:
    USED.append("network")
    module = nn.Sequential(nn.Flatten(), nn.Linear(size * size, width), nn.LeakyReLU())
    return Backbone(module, width, Preprocessing(size=size, mean=(0.5,), std=(0.25,)))


class OwnModule(nn.Module):
    def __init__(self, width: int = 5):
        super().__init__()
        USED.append("network")
        self.layer = nn.Linear(64, width)

    def forward(self, images):
        return self.layer(images.float().flatten(1) / 255)


@sampling.register("own_sampler")
class OwnSampler(sampling.BalancedSampler):
    """Balanced batches, counted."""

    def _planned(self, generator):
        USED.append("sampler")
        return super()._planned(generator)


@mining.register("own_miner")
class OwnMiner(mining.Hard):
    def __call__(self, *similarities, **keywords):
        USED.append("miner")
        return super().__call__(*similarities, **keywords)


class OwnTransform:

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, samples, indices, seeds):
        USED.append("transform")
        return torch.stack([samples[i] for i in indices]).float() / self.scale


@data.transforms.register("own_transform")
def own_transform(preprocessing=None, train=True, *, scale: float = 255.0):
    return OwnTransform(scale)


@optimizers.register("own_optimizer")
def own_optimizer(params, *, lr: float, weight_decay: float = 0.0, momentum: float = 0.5):
    USED.append("optimizer")
    return torch.optim.SGD(params, lr=lr, weight_decay=weight_decay, momentum=momentum)


@schedules.register("own_schedule")
class OwnSchedule:
    def __init__(self, floor: float = 0.1):
        self.floor = floor

    def __call__(self, epoch, epochs, warmup):
        USED.append("schedule")
        return max(self.floor, 1 - epoch / epochs)


@protocols.register("own_protocol")
class OwnProtocol(protocols.Standard):
    def train(self, task, run, data, observer, score_test=None):
        USED.append("protocol")
        return super().train(task, run, data, observer, score_test)


@trackers.register("own_tracker")
class OwnTracker(Observer):
    def __init__(self, run, *, prefix: str = ""):
        self.run = run

    def epoch_end(self, row):
        USED.append("tracker")
'''
SHORT = {
    "data": {"name": "own_data", "classes": 20, "transform": {"name": "own_transform", "scale": 128.0}},
    "network": {"name": "own_network", "width": 4, "embedding_dim": 3},
    "loss": {"name": "own_loss", "margin": 0.2, "mining": "own_miner", "own_modifier": {"weight": 1e-6}},
    "sampler": {"name": "own_sampler", "batch_size": 8, "images_per_class": 2},
    "optimizer": {"name": "own_optimizer", "momentum": 0.8, "lr": 0.01},
    "schedule": {"name": "own_schedule", "floor": 0.2},
    "protocol": {"name": "own_protocol"},
    "training": {"epochs": 1, "trackers": [{"name": "own_tracker", "prefix": "x"}]},
}
LONG = {
    "data": {
        "name": "contributed:own_data",
        "classes": 20,
        "transform": {"name": "contributed:own_transform", "scale": 128.0},
    },
    "network": {"name": "contributed:OwnModule", "width": 4},
    "loss": {"name": "triplet", "mining": "contributed:OwnMiner"},
    "sampler": {"name": "contributed:OwnSampler", "batch_size": 8, "images_per_class": 2},
    "optimizer": {"name": "contributed:own_optimizer", "momentum": 0.8, "lr": 0.01},
    "schedule": {"name": "contributed:OwnSchedule", "floor": 0.2},
    "protocol": {"name": "contributed:OwnProtocol"},
    "training": {"epochs": 1, "trackers": ["contributed:OwnTracker"]},
}
KINDS = {
    "loss",
    "modifier",
    "data",
    "network",
    "sampler",
    "miner",
    "transform",
    "optimizer",
    "schedule",
    "protocol",
    "tracker",
}


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """A module ``contributed`` outside the package; whatever it registers is forgotten afterwards."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "contributed.py").write_text(PLUG_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield folder
    forget()


def forget() -> None:
    """The plug-in, and what it registered; asking for names would load entry points again."""
    sys.modules.pop("contributed", None)
    for registry in REGISTRIES:
        for name in [name for name in registry._makers if name.startswith("own_")]:
            registry.unregister(name)


def trained(values: dict, path: Path) -> set[str]:
    """The kinds of the plug-in that a run of these settings used."""
    run = nearkin.train(Recipe.parse(values), output=path, progress=False)
    assert run.finished
    return set(sys.modules["contributed"].USED)


def test_by_imports_every_kind_is_used_under_its_name(plug_in, tmp_path):
    assert trained({"imports": ["contributed"], **SHORT}, tmp_path / "run") == KINDS
    assert 'imports = [ "contributed"]' in (tmp_path / "run" / "recipe.toml").read_text()


def test_by_module_and_object_nothing_has_to_be_registered(plug_in, tmp_path):
    assert trained(LONG, tmp_path / "run") == KINDS - {"loss", "modifier"}
    function = LONG | {"loss": {"name": "contributed:plain_loss", "scale": 2.0}}
    sys.modules["contributed"].USED.clear()
    assert trained(function, tmp_path / "function") == KINDS - {"miner", "modifier"}


def test_by_an_entry_point_nothing_has_to_be_imported(plug_in, tmp_path):
    about = plug_in / "contributed-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: contributed\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nearkin]\nown = contributed\n")
    registry_module.load_entry_points.cache_clear()
    try:
        assert trained(SHORT, tmp_path / "run") == KINDS
    finally:
        registry_module.load_entry_points.cache_clear()


def test_the_model_of_a_plug_in_finds_its_network_again_and_needs_no_loss(plug_in, tmp_path):
    trained({"imports": ["contributed"], **SHORT}, tmp_path / "run")
    before = nearkin.load(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "model.json").read_text())["imports"] == ["contributed"]
    forget()
    after = nearkin.load(tmp_path / "run")
    assert after.fingerprint == before.fingerprint
    assert after.embedding_dim == 3


def test_running_a_registering_cell_again_replaces_it(plug_in):
    module = importlib.import_module("contributed")
    first = loss_registry.get("own_loss")
    importlib.reload(module)
    assert loss_registry.get("own_loss") is not first
    cell = "@register('own_cell')\nclass Cell(Triplet):\n    '''A loss.'''\n"
    names = {"register": losses.register, "Triplet": losses.Triplet, "__name__": "__main__"}
    exec(cell, names)
    exec(cell, names)
    assert loss_registry.get("own_cell") is names["Cell"]
    with pytest.raises(ValueError, match="'triplet' is registered already, by nearkin"):
        exec(cell.replace("own_cell", "triplet"), names)


def test_an_unknown_miner_by_module_is_named():
    with pytest.raises(ValueError, match="there is no miner no_such_module:Miner"):
        mining.build("no_such_module:Miner")


# The rules.


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_function_outside_its_room_takes_a_recipe():
    """Commands have an argument of this name, which is text."""
    wrong = []
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] == "recipe":
            continue
        for function in functions(path):
            arguments = function.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                annotation = ast.unparse(one.annotation) if one.annotation else ""
                named_so = one.arg == "recipe" and annotation != "RecipeArgument"
                if named_so or re.search(r"\bRecipe\b", annotation):
                    wrong.append(f"{path.relative_to(SOURCE)}:{function.lineno} {function.name}({one.arg})")
    assert wrong == []


def test_four_types_carry_data_from_disk_to_loss():
    """``Samples``, ``SampleSet``, ``DataSet``, ``Batch``; every kind of samples is one of ``Samples``."""
    carriers = {"Samples", "SampleSet", "DataSet", "Batch"}
    kinds = {
        name
        for name in data.__all__
        if isinstance(getattr(data, name), type) and hasattr(getattr(data, name), "__getitem__")
    } - {"Batch", "NumberedNames"}  # which are names of classes, and no samples
    for name in kinds - carriers:
        for method in ("__len__", "select", "name"):
            assert hasattr(getattr(data, name), method), f"{name} is no Samples and carries data"
    assert data.Batch._fields == ("inputs", "labels", "indices")
