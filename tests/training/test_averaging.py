from __future__ import annotations

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import execute, new_run
from torch import nn

from nearkin.recipe import Recipe
from nearkin.training import engine
from nearkin.training.averaging import WeightAverage


def test_the_average_is_the_recursion_of_its_definition():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = WeightAverage(network, decay=0.6)
    expected = {name: value.clone() for name, value in network.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 40):
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator))
            else:
                value.add_(1)
        average.update()
        d = min(0.6, (1 + t) / (10 + t))
        for name, value in network.state_dict().items():
            expected[name] = (
                d * expected[name] + (1 - d) * value if value.is_floating_point() else value.clone()
            )
    live = {name: value.clone() for name, value in network.state_dict().items()}
    with average.in_place():
        for name, value in network.state_dict().items():
            assert torch.allclose(value, expected[name], atol=1e-6), name
    for name, value in network.state_dict().items():
        assert torch.equal(value, live[name])


def test_the_live_weights_come_back_after_an_error():
    network = nn.Linear(2, 2)
    average = WeightAverage(network, decay=0.5)
    with torch.no_grad():
        network.weight.fill_(3.0)
    with pytest.raises(ZeroDivisionError), average.in_place():
        raise ZeroDivisionError
    assert network.weight.eq(3).all()


def test_the_average_is_what_is_selected_and_kept_and_resumed(small_recipe, tmp_path, monkeypatch):
    values = small_recipe | {"training": {"epochs": 3, "ema": 0.9}}
    shadows = []
    finish = engine._Training._finish

    def spying(self):
        if self.average is not None:
            shadows.append({name: value.clone() for name, value in self.average.tensors().items()})
        return finish(self)

    monkeypatch.setattr(engine._Training, "_finish", spying)
    run = new_run(tmp_path / "run", Recipe.parse(values | {"protocol": {"name": "standard"}}))
    execute(run)
    weights, shadow = run.read_network(), shadows[0]
    assert shadow.pop("steps") > 3
    assert all(torch.equal(weights[name], value) for name, value in shadow.items())
    plain = new_run(tmp_path / "plain", Recipe.parse(small_recipe | {"training": {"epochs": 3}}))
    execute(plain)
    averaged = new_run(tmp_path / "averaged", Recipe.parse(values))
    execute(averaged)
    scores = [[row["recall_at_1"] for row in one.metrics()] for one in (plain, averaged)]
    assert scores[0][0] == scores[1][0]
    assert scores[0][1:] != scores[1][1:]
    broken = new_run(tmp_path / "broken", Recipe.parse(values))
    with pytest.raises(Interruption):
        execute(broken, StopAfterEpoch(2))
    execute(broken)
    assert broken.result_file.read_text() == averaged.result_file.read_text()
