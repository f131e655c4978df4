from __future__ import annotations

import shutil

import numpy as np
import pytest
import tomli_w
from in_process import InProcess, tiny_plan
from PIL import Image

import nearkin
from nearkin.benchmark import execution
from nearkin.benchmark.plan import PlanError
from nearkin.observer import Observer
from nearkin.tournament import recognising
from nearkin.tournament.playing import TEN, plan_for, play
from nearkin.tournament.recognising import meaning_of
from nearkin.training import RunError


@pytest.fixture
def workforce(monkeypatch) -> InProcess:
    """Runs are carried out in this process."""
    monkeypatch.setattr(execution, "_PAUSE", 0)
    hired = InProcess()
    monkeypatch.setattr(execution, "_workforce", lambda *_: hired)
    return hired


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return draw_photos(tmp_path / "mine" / "photos", seed=0)


def draw_photos(root, *, seed):
    draws = np.random.default_rng(seed)
    for name in "abcdefgh":
        (root / name).mkdir(parents=True)
        shade = draws.integers(0, 200, (1, 1, 3))
        for number in range(4):
            pixels = shade + draws.integers(0, 50, (16, 16, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


SMALL = {
    "network": {"name": "convnet", "size": 16, "width": 4, "channels": 3, "embedding_dim": 8},
    "sampler": {"name": "balanced", "batch_size": 8, "images_per_class": 4},
    "training": {"epochs": 1},
    "protocol": {"name": "standard"},
}


def test_a_folder_of_images_becomes_a_tournament(workforce, photos, tmp_path):
    standings = nearkin.tournament(
        photos, losses=["triplet", "npair"], seeds=[0, 1], output=tmp_path / "out", progress=False, **SMALL
    )
    (board,) = standings.leaderboards
    seeds = {place.contender: place.seeds for place in board.places if place.kind == "run"}
    assert seeds == {"triplet": 2, "npair": 2}
    assert {"raw_pixels", "untrained_network", "pca"} <= {place.contender for place in board.places}
    assert standings.report == tmp_path / "out" / "report.html"
    assert "triplet" in standings.report.read_text()
    trained = len(workforce.trained)
    again = play(tmp_path / "out", output=tmp_path / "out", progress=False, report=False)
    assert len(workforce.trained) == trained == 4
    assert again.leaderboards == standings.leaderboards
    other = draw_photos(tmp_path / "yours" / "photos", seed=1)
    with pytest.raises(RunError, match=r"holds a finished run on .*mine.photos, not on .*yours.photos"):
        play(other, losses=["triplet"], output=tmp_path / "out", progress=False, settings=SMALL)


def test_ones_own_data_gets_ten_losses_and_a_place_of_its_own(photos, tmp_path):
    plan = plan_for(photos, settings=SMALL)
    assert [run.recipe.loss.name for run in plan.runs()] == list(TEN)
    assert all(run.recipe.resolved().data.name == "folder" for run in plan.runs())
    other = draw_photos(tmp_path / "yours" / "photos", seed=1)
    assert plan_for(other, settings=SMALL).name != plan.name


@pytest.mark.parametrize(
    ("classes", "protocol"), [(3, "closed_set"), (6, "standard"), (12, "fixed_validation")]
)
def test_few_classes_choose_the_protocol_that_a_training_on_them_has(photos, tmp_path, classes, protocol):
    for folder in sorted(path for path in photos.iterdir() if path.is_dir())[:classes]:
        shutil.copytree(folder, tmp_path / "few" / folder.name)
    few = tmp_path / "few"
    assert {run.recipe.protocol.name for run in plan_for(few, settings={}).runs()} == {protocol}
    said = {"protocol": {"name": "cross_validation"}}
    assert {run.recipe.protocol.name for run in plan_for(few, settings=said).runs()} == {"cross_validation"}


def test_without_anything_it_is_the_embedded_plan():
    plan = plan_for(None, settings={})
    assert plan.name == "tournament"
    played = [run.recipe.loss.name for run in plan.runs()]
    assert len(played) == 18  # what README's first command takes minutes for; new losses do not join it
    assert set(played) < set(nearkin.losses.names())
    few = plan_for(None, losses=["nca"], seeds=[3], settings={"epochs": 2})
    (run,) = few.runs()
    assert (run.name, run.recipe.training.epochs) == ("glyphs-convnet-nca-64-seed3", 2)


def test_settings_change_all_recipes_and_names_replace_a_plans_lists():
    plan = plan_for("cub_cached", losses=["nca"], settings={"data": {"root": "here"}, "weights": "w.pth"})
    assert {run.recipe.network.embedding_dim for run in plan.runs()} == {128, 512}
    assert {(run.recipe.data.name, run.recipe.data.root) for run in plan.runs()} == {("cub200", "here")}
    other = plan_for(None, losses=["nca"], settings={"data": {"size": 16}, "embedding_dim": 8})
    (run,) = other.runs()
    assert run.recipe.data.keywords == {"num_classes": 600, "size": 16}
    assert run.recipe.network.embedding_dim == 8
    (run,) = plan_for(None, losses=["nca"], settings={"protocol": "standard"}).runs()
    assert run.recipe.protocol.name == "standard"


def test_a_plan_or_a_recipe_can_be_given(glyphs_root, tmp_path):
    file = tmp_path / "mine.toml"
    values = tiny_plan(glyphs_root, seeds=[4, 5])
    file.write_text(tomli_w.dumps(values))
    assert [run.recipe.seed for run in plan_for(file, settings={}).runs()] == [4, 5, 4, 5]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tomli_w.dumps({**values["recipe"], "loss": {"name": "margin", "nu": 0.1}}))
    assert [run.recipe.loss.name for run in plan_for(recipe, settings={}).runs()] == list(TEN)


def own_loss(embeddings, labels):
    same = labels[:, None] == labels
    return (1 - embeddings @ embeddings.T)[same].mean()


def test_losses_that_can_be_imported_are_named_and_others_refused():
    (run,) = plan_for("glyphs", losses=[own_loss], settings={}).runs()
    assert run.recipe.loss.name.endswith("test_playing:own_loss")
    assert run.labels["loss"] == "own_loss"
    with pytest.raises(PlanError, match=r"the loss .*was given as a Python object.*module:object"):
        plan_for("glyphs", losses=[lambda embeddings, labels: embeddings.sum()], settings={})
    with pytest.raises(PlanError, match="the data was given as a Python object.*nearkin.compare"):
        plan_for((["a", "b"] * 4, [0, 1] * 4), settings={})


def test_a_misspelt_score_is_told_before_anything_runs(workforce, tmp_path):
    with pytest.raises(PlanError, match="would have no map_at_er: did you mean map_at_r"):
        play("glyphs", losses=["nca"], output=tmp_path / "out", metric="map_at_er", progress=False)
    assert workforce.trained == []
    assert not (tmp_path / "out").exists()


def test_what_fails_is_told_and_does_not_stop_the_rest(workforce, glyphs_root, tmp_path):
    bad = {"name": "nca", "label": "broken", "recipe": {"sampler": {"name": "balanced", "batch_size": 3}}}
    file = tmp_path / "p.toml"
    file.write_text(tomli_w.dumps(tiny_plan(glyphs_root, losses=["nca", bad])))
    told = []

    class Audience(Observer):
        def stage(self, what):
            told.append(what)

    options = {"baselines": False, "report": False}
    standings = play(file, output=tmp_path / "out", progress=Audience(), **options)
    assert [place.contender for place in standings.leaderboards[0].places] == ["nca"]
    assert any("1 of 2 runs failed: glyphs-convnet-broken" in note for note in standings.notes)
    assert "training 2 runs" in told
    with pytest.raises(ValueError, match=r"1 of 1 runs failed: .*error.txt"):
        play(file, losses=[bad], output=tmp_path / "none", progress=False, **options)


def test_words_mean_what_they_are(photos, make_run, glyphs_root, tmp_path, monkeypatch):
    run = make_run("triplet", noise=1.0)
    assert meaning_of(run) == meaning_of(run.parent) == "runs"
    assert meaning_of(photos) == meaning_of("glyphs") == "data"
    assert meaning_of("tournament") == "plan"
    for name, head in {"results": "loss,recall_at_1\n", "data": "path,label\n"}.items():
        (tmp_path / f"{name}.csv").write_text(head)
        assert meaning_of(tmp_path / f"{name}.csv") == name
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="empty holds neither finished runs nor images"):
        meaning_of(empty)
    with pytest.raises(ValueError, match=r"is the whole disk"):
        meaning_of("/")
    with pytest.raises(ValueError, match="glyps is not a directory.*did you mean glyphs"):
        meaning_of("glyps")
    with pytest.raises(ValueError, match="several words must all be runs"):
        play([str(run), str(photos)])
    with pytest.raises(ValueError, match="ranked as they are"):
        play(run, losses=["nca"])


def test_a_folder_is_looked_into_no_further_than_it_takes(tmp_path, monkeypatch):
    looked = []
    entries = recognising._entries
    monkeypatch.setattr(recognising, "_MOST_ENTRIES", 50)
    monkeypatch.setattr(
        recognising, "_entries", lambda *given: (looked.append(one) or one for one in entries(*given))
    )
    for number in range(200):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(ValueError, match="neither finished runs nor images"):
        meaning_of(tmp_path)
    assert len(looked) <= 51


def test_the_package_is_a_package_and_a_function():
    from nearkin.tournament import rank_published  # noqa: PLC0415

    assert callable(nearkin.tournament)
    assert nearkin.tournament.rank_published is rank_published
    with pytest.raises(AttributeError, match="no attribute 'rank_publshed'"):
        nearkin.tournament.rank_publshed  # noqa: B018
