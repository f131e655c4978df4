from __future__ import annotations

import pytest
from poison import poison_test_splits
from running import execute, new_run

from nearkin.protocols import seal
from nearkin.protocols.standard_best_on_test import StandardBestOnTest
from nearkin.recipe import Recipe
from nearkin.training import Observer


@pytest.fixture
def recipe(small_recipe):
    values = {"protocol": {"name": "standard_best_on_test"}, "training": {"epochs": 5}}
    return Recipe.parse(small_recipe | values)


def test_the_test_classes_choose_the_epoch_and_the_result_says_so(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    run = new_run(tmp_path / "run", recipe)
    result = execute(run).result
    assert (vault.unsealed, vault.opened) == (1, 1)
    rows = run.metrics()[1:]
    best = max(row["recall_at_1"] for row in rows)
    assert result.epoch in [row["epoch"] for row in rows if row["recall_at_1"] == best]
    assert result.test.recall_at[1] == best
    assert "TEST" in result.rule
    assert "too good" in result.rule
    assert result.validation is None


def test_it_trains_as_the_standard_does(recipe, tmp_path):
    runs = [
        new_run(tmp_path / name, recipe.changed({"protocol.name": name}))
        for name in ("standard", "standard_best_on_test")
    ]
    results = [execute(run).result for run in runs]
    losses = [[row["loss"] for row in run.metrics()[1:]] for run in runs]
    assert losses[0] == losses[1]
    assert results[1].test.recall_at[1] >= results[0].test.recall_at[1]


def test_it_needs_the_seal_to_be_broken_for_it(recipe, tmp_path):
    task = recipe.build()
    sealed_data, _ = seal(task.data)
    with pytest.raises(ValueError, match="cannot be used where these are not given"):
        StandardBestOnTest().train(task, new_run(tmp_path / "run", recipe), sealed_data, Observer())
