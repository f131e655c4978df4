from __future__ import annotations

from types import SimpleNamespace

import pytest

from nearkin.recipe import Recipe


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """What the command asks of its Python twin, which searches nothing here."""
    asked: dict = {}

    def tune(recipe, **options):
        asked.update(options, recipe=recipe)
        return SimpleNamespace(
            path=tmp_path / "search", finish_as=lambda keep, observer: [f"the run of {keep}"]
        )

    monkeypatch.setattr("nearkin.api.tune", tune)
    monkeypatch.setattr("nearkin.cli.search_display.print_search", lambda search, pictures: print("searched"))
    monkeypatch.setattr("nearkin.tuning.drawing.draw", lambda search: [])
    monkeypatch.setattr("nearkin.cli.views.draw_run", lambda run, observer: [])
    monkeypatch.setattr("nearkin.cli.display.print_run", lambda run, pictures: print("trained", run))
    return asked


def test_the_command_asks_its_python_twin(nearkin, tuned, tmp_path):
    options = [
        "--trials",
        7,
        "-r",
        "optimizer.lr=1e-3:1e-2",
        "--sampler",
        "random",
        "--pruner",
        "none",
        "-j",
        2,
    ]
    options += ["--trial-epochs", 4, "--keep", "validation"]
    changes = ["-s", "seed=3", "--import", "json", "--skip-bad", "--weights", "imagenet"]
    code, out, err = nearkin("tune", "glyphs", *options, *changes, "-o", tmp_path / "search")
    assert (code, out, err) == (0, "searched\ntrained the run of validation\n", "")
    recipe = tuned.pop("recipe")
    assert (recipe.seed, recipe.imports, recipe.data.name) == (3, ("json",), "glyphs")
    assert (recipe.network.weights, recipe.data.skip_bad) == ("imagenet", True)
    assert tuned == {
        "ranges": ["optimizer.lr=1e-3:1e-2"],
        "trials": 7,
        "sampler": "random",
        "pruner": "none",
        "trial_epochs": 4,
        "keep": "validation",
        "jobs": 2,
        "output": tmp_path / "search",
        "search_only": True,
    }


def test_the_test_classes_stay_sealed_on_request(nearkin, tuned):
    assert nearkin("tune", "--search-only")[1] == "searched\n"


def test_tune_searches_then_trains_on_all_classes_and_tests(nearkin, small_recipe, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(Recipe.parse(small_recipe).to_toml())
    command = ["tune", recipe, "--trials", 2, "--range", "optimizer.lr=1e-3:1e-2", "-o", tmp_path / "search"]
    code, out, err = nearkin(*command, "--search-only")
    assert (code, err) == (0, "")
    assert "searching: 2 trials" in out
    assert "trial   0" in out
    assert "2 trials on validation classes: 2 done, 0 given up, 0 failed" in out
    assert "optimizer.lr" in out
    assert "test classes" not in out
    assert not (tmp_path / "search" / "best").exists()
    code, out, err = nearkin(*command)
    assert code == 0
    assert "test classes" in out
    assert (tmp_path / "search" / "best" / "result.json").exists()
    assert (tmp_path / "search" / "history.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--range", "loss.margn=0:1"], "loss 'proxy_anchor' has no keyword 'margn': did you mean margin?"),
        (["--keep", "some"], "keep='some' must be one of: all, validation, both"),
        (["--sampler", "gird"], "sampler='gird' must be one of: tpe, random, grid"),
        (["--set", "protocol.name=standard"], "a search selects on validation classes"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(options, message, nearkin, tmp_path):
    code, _, err = nearkin("tune", *options, "-o", tmp_path / "search")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "search").exists()
