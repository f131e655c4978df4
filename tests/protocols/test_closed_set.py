"""Closed sets: images of every class are held out, and results say so; and final trainings on all classes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nearkin
from nearkin.cli.display import _tested, print_run
from nearkin.observer import Observer
from nearkin.protocols.closed_set import held_out
from nearkin.recipe import carrying_out

SETTINGS = {
    "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 8},
    "epochs": 2,
    "batch_size": 20,
    "progress": False,
}


def pictures(classes=6, images=8):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randint(0, 200, (classes, 1, 16, 16), generator=generator)
    noise = torch.randint(0, 55, (classes, images, 1, 16, 16), generator=generator)
    pixels = (centres[:, None] + noise).to(torch.uint8).flatten(0, 1)
    return pixels, torch.arange(classes).repeat_interleave(images).tolist()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.floats(0.05, 0.95), st.integers(1, 3))
def test_held_out_rows_leave_as_many_behind(labels, share, fewest):
    labels = torch.tensor(labels)
    kept, out = held_out(labels, share, 0, fewest=fewest)
    assert sorted([*kept.tolist(), *out.tolist()]) == list(range(len(labels)))
    for label in labels.unique():
        ours, theirs = (labels[kept] == label).sum(), (labels[out] == label).sum()
        assert theirs <= ours
        assert theirs == 0 or theirs >= fewest


def test_a_closed_set_trains_and_tests_on_the_same_classes(tmp_path):
    settings = SETTINGS | {"evaluation": {"false_accept_rate": 0.1}}
    run = nearkin.train(pictures(), protocol="closed_set", output=tmp_path / "run", **settings)
    data = run.result.data
    assert set(data.test.class_names) == set(data.train.class_names) == {str(n) for n in range(6)}
    assert run.result.test.queries == data.test.samples == 6 * 2
    assert any("no score of classes never seen" in note for note in data.notes)
    assert run.result.rule == "best epoch on validation images of the same classes"
    assert _tested(data) == "test images"
    assert run.result.threshold.known_classes
    assert "% on new samples of classes trained on)" in str(run.result.threshold)
    assert nearkin.load(run.path).threshold == run.result.threshold
    found = nearkin.evaluate(run, pictures(), progress=False)
    assert found.opened.scores.recall_at == run.result.test.recall_at


def test_what_is_said_of_a_closed_set_is_about_images(tmp_path, capsys):
    run = nearkin.train(pictures(), protocol="closed_set", output=tmp_path / "run", **SETTINGS)
    print_run(run, [])
    out = capsys.readouterr().out
    assert "\ntest images " in out
    assert "\nvalidation images " in out
    assert "test classes" not in out


def test_two_classes_are_enough_for_a_closed_set(tmp_path):
    run = nearkin.train(pictures(2), protocol="closed_set", output=tmp_path / "run", **SETTINGS)
    assert 0 <= run.result.test.recall_at[1] <= 1


@pytest.mark.parametrize("share", [0, 1, 1.5])
def test_wrong_shares_are_named(share):
    with pytest.raises(ValueError, match=f"test_share={share} must lie between 0 and 1"):
        nearkin.protocols.ClosedSet(test_share=share)
    with pytest.raises(ValueError, match=f"validation_share={share} must lie between 0 and 1"):
        nearkin.protocols.ClosedSet(validation_share=share)


def test_classes_of_one_image_cannot_be_a_closed_set(tmp_path):
    pixels, _ = pictures(6, 1)
    message = "closed_set needs classes of two images or more: all of these have one"
    with pytest.raises(ValueError, match=message):
        nearkin.train((pixels, list(range(6))), protocol="closed_set", output=tmp_path / "run", **SETTINGS)


def test_three_rows_give_one_and_keep_two():
    kept, out = held_out(torch.tensor([0, 0, 0]), 0.9, 0, fewest=1)
    assert (len(kept), len(out)) == (2, 1)
    kept, out = held_out(torch.tensor([0, 0, 0, 1, 1]), 0.9, 0, fewest=1)  # two rows are enough, too
    assert (len(kept), len(out)) == (3, 2)


def test_a_final_training_learns_from_all_classes(tmp_path, capsys):
    settings = SETTINGS | {"output": tmp_path / "run", "evaluation": {"false_accept_rate": 0.1}}
    settings["protocol"] = {"name": "fixed_validation", "validation_share": 0.5}
    run = nearkin.train(pictures(12), final=True, **settings)
    final = tmp_path / "run" / "final"
    model = nearkin.load(final)
    assert model.embed(pictures(12)[0]).shape == (96, 8)
    assert model.fingerprint != nearkin.load(run.path).fingerprint
    assert not list(final.glob("checkpoint/step-*"))
    rows = [line for line in (final / "metrics.jsonl").read_text().splitlines() if line]
    assert len(rows) == run.result.epoch + 1
    before = (final / "checkpoint" / "network.safetensors").read_bytes()
    nearkin.train(pictures(12), final=True, **settings)
    assert (final / "checkpoint" / "network.safetensors").read_bytes() == before
    assert model.threshold == run.result.threshold is not None
    print_run(run, [])
    assert f"final     {final}, trained on all classes" in capsys.readouterr().out.replace("\n", "")


def test_there_is_no_final_training_of_a_network_that_was_best_before_training(tmp_path, monkeypatch):
    noted = []

    class Listener(Observer):
        def note(self, text):
            noted.append(text)

    untrained = SimpleNamespace(result=SimpleNamespace(epoch=0))
    monkeypatch.setattr(carrying_out, "execute", lambda *_: untrained)
    settings = SETTINGS | {"output": tmp_path / "run", "progress": Listener()}
    assert nearkin.train(pictures(12), final=True, **settings) is untrained
    assert any("no final training: epoch 0 was chosen" in note for note in noted)
