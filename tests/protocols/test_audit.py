"""protocol.audit: test scores of every epoch, made after the selection and never before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from interruptions import Interruption, StopAfterEpoch, StopAtBatch
from poison import poison_test_splits
from running import execute, finished, new_run, reopened

from nearkin.observer import Observer
from nearkin.protocols import seal
from nearkin.protocols.audit import LABEL, Audit
from nearkin.recipe import Recipe, RecipeError
from nearkin.recipe.searching import searched
from nearkin.training import Run
from nearkin.tuning.plan import plan_search
from nearkin.tuning.search import Search


@pytest.fixture
def recipe(small_recipe) -> Recipe:
    return Recipe.parse(small_recipe | {"training": {"epochs": 4}, "protocol": {"audit": True}})


class Watching(Observer):
    """Looks, after every epoch, at all that a selection could read."""

    def __init__(self, run: Run, vault) -> None:
        self.run, self.vault, self.epochs = run, vault, []

    def epoch_end(self, row) -> None:
        self.epochs.append(row["epoch"])
        assert (self.vault.opened, self.vault.unsealed) == (0, 0)
        assert not self.run.audit_file.exists()
        assert self.run.kept_epochs() == self.epochs
        files = {file.suffix for file in (self.run.path / "audit").iterdir()}
        assert files == {".safetensors"}  # networks, and no score


def test_no_test_score_exists_before_the_selection_is_made(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    run = new_run(tmp_path / "run", recipe)
    watching = Watching(run, vault)
    result = execute(run, watching).result
    assert watching.epochs == [0, 1, 2, 3, 4]
    assert (vault.opened, vault.unsealed) == (1, 0)
    audit = Audit.read(run.path)
    assert list(audit.rows) == [0, 1, 2, 3, 4]
    assert audit.chosen == result.epoch
    assert audit.scores("recall_at_1")[result.epoch] == result.test.recall_at[1]
    assert 0 not in audit.scores("recall_at_1")  # an untrained network is never selected
    assert json.loads(run.audit_file.read_text())["label"] == LABEL
    assert not (run.path / "audit").exists()


def test_a_sealed_test_split_scores_no_audit(recipe):
    task = recipe.build()
    _, sealed = seal(task.data)
    with pytest.raises(RuntimeError, match="still sealed"):
        sealed.score_opened(task.embedder, (1,))


def test_an_audit_changes_no_number_of_a_run(recipe, tmp_path):
    audited = finished(tmp_path / "audited", recipe).result.to_dict()
    plain = execute(new_run(tmp_path / "plain", recipe.changed({"protocol.audit": None}))).result.to_dict()
    for result in (audited, plain):
        result["recipe"].pop("protocol")
    assert audited == plain
    # It is off by default, and neither a resumed run nor a comparison minds it.
    assert not Recipe.parse({}).protocol.audit
    assert not (tmp_path / "plain" / "audit.json").exists()
    reopened(tmp_path / "audited")


def test_the_scores_are_those_that_choosing_on_test_would_have_seen(recipe, tmp_path):
    """The oracle: the same training under standard_best_on_test, which is told the test scores."""
    run = new_run(tmp_path / "run", recipe.changed({"protocol.name": "standard"}))
    execute(run)
    told = new_run(tmp_path / "told", recipe.changed({"protocol": {"name": "standard_best_on_test"}}))
    best = execute(told).result
    rows = {row["epoch"]: row["recall_at_1"] for row in told.metrics()}
    audit = Audit.read(run.path)
    assert {epoch: row["recall_at_1"] for epoch, row in audit.rows.items()} == pytest.approx(rows)
    assert max(audit.scores("recall_at_1").values()) == pytest.approx(best.test.recall_at[1])


@pytest.mark.parametrize("stop", [StopAtBatch(7), StopAfterEpoch(3)])
def test_a_killed_run_goes_on_to_the_same_audit(recipe, tmp_path, stop):
    whole = finished(tmp_path / "whole", recipe)
    broken = new_run(tmp_path / "broken", recipe)
    with pytest.raises(Interruption):
        execute(broken, stop)
    again = reopened(tmp_path / "broken")
    execute(again)
    assert json.loads(again.audit_file.read_text()) == json.loads(whole.audit_file.read_text())


def test_folds_are_audited_each(recipe, tmp_path):
    protocol = {"name": "cross_validation", "folds": 2, "audit": True}
    run = new_run(tmp_path / "run", recipe.changed({"protocol": protocol, "training.epochs": 2}))
    result = execute(run).result
    for one in result.networks:
        audit = Audit.read(run.path / one.run)
        assert audit.scores("recall_at_1")[one.epoch] == one.test.recall_at[1]


def test_moving_averages_are_what_is_audited(recipe, tmp_path):
    run = new_run(tmp_path / "run", recipe.changed({"training.ema": 0.5}))
    result = execute(run).result
    assert Audit.read(run.path).scores("recall_at_1")[result.epoch] == result.test.recall_at[1]


def test_a_protocol_that_chooses_on_test_has_nothing_to_audit():
    with pytest.raises(RecipeError, match="standard_best_on_test chooses on test"):
        Recipe.parse({"protocol": {"name": "standard_best_on_test", "audit": True}})


def test_trials_of_a_search_keep_no_epochs(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    search = Search.open(tmp_path / "search", plan_search(searched(recipe.changed({"training.epochs": 1}))))
    search.run(1)
    assert not list((tmp_path / "search").rglob("audit*"))
    assert (vault.opened, vault.unsealed) == (0, 0)


def test_what_is_not_audited_whole_is_not_read(tmp_path):
    assert Audit.read(tmp_path) is None
    (tmp_path / "audit.json").write_text("{}")
    assert Audit.read(tmp_path) is None


def test_a_task_says_whether_it_is_audited(recipe):
    task = recipe.build()
    assert task.audit
    assert not task.settings.keep_epochs  # only a whole run keeps them, not whoever trains its task
    assert replace(task, audit=False).settings == task.settings


def test_a_run_that_began_without_an_audit_has_none(recipe, tmp_path):
    plain = recipe.changed({"protocol.audit": None})
    with pytest.raises(Interruption):
        execute(new_run(tmp_path / "run", plain), StopAfterEpoch(3))
    again = new_run(tmp_path / "run", recipe)  # the same run: an audit changes no number
    execute(again)
    assert again.finished
    assert not again.audit_file.exists()
    assert not (again.path / "audit").exists()


def test_a_retrained_network_is_audited_as_far_as_it_was_trained(recipe, tmp_path):
    run = new_run(tmp_path / "run", recipe.changed({"protocol.name": "retrained"}))
    result = execute(run).result
    audit = Audit.read(run.path)
    assert list(audit.rows) == list(range(result.epoch + 1))
    assert audit.scores("recall_at_1")[result.epoch] == result.test.recall_at[1]
    assert not [*run.path.rglob("epoch-*")]
