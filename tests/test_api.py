"""The six functions with objects: resumed, read again, evaluated, refused where they must be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from interruptions import Interruption, StopAtBatch
from torch import nn
from torch.utils.data import Dataset

import nearkin
from nearkin.recipe import Recipe
from nearkin.training import Run, RunError


class Points(Dataset):
    """Sixteen classes of eight points."""

    def __init__(self, shift: float = 0.0) -> None:
        numbers = np.random.default_rng(0)
        centres = numbers.normal(size=(16, 1, 5))
        self.points = (centres + 0.3 * numbers.normal(size=(16, 8, 5))).reshape(128, 5).astype(np.float32)
        self.points += shift

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[np.ndarray, str]:
        return self.points[index], f"class {index // 8:02}"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def pull(embeddings: torch.Tensor, labels: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    unit = nn.functional.normalize(embeddings)
    return weight * ((unit @ unit.T - (labels[:, None] == labels[None]).float()) ** 2).mean()


def train(output: Path, data: object = None, **settings: object) -> Run:
    options = {
        "network": network(),
        "loss": pull,
        "epochs": 3,
        "batch_size": 20,
        "progress": False,
    } | settings
    return nearkin.train(data or Points(), output=output, **options)


def test_a_run_of_objects_goes_on_where_it_was_stopped(tmp_path):
    whole = train(tmp_path / "whole")
    with pytest.raises(Interruption):
        train(tmp_path / "run", progress=StopAtBatch(4))
    assert not (tmp_path / "run" / "result.json").exists()
    train(tmp_path / "run")
    texts = [(tmp_path / name / "result.json").read_text() for name in ("whole", "run")]
    assert texts[0] == texts[1]
    assert whole.result == train(tmp_path / "whole").result  # finished: only read


def test_a_batch_that_was_fitted_to_the_data_is_no_other_recipe(tmp_path):
    first = train(tmp_path / "run", batch_size=None)
    assert first.terms["sampler"]["batch_size"] < 180
    assert train(tmp_path / "run", batch_size=None).result == first.result
    with pytest.raises(RunError, match=r"another recipe \(sampler.batch_size"):
        train(tmp_path / "run", batch_size=12)


def test_batches_fit_into_every_fold(tmp_path):
    """Eight training classes in two folds leave four to learn from, which fill no batch of eight classes."""
    folds = {"name": "cross_validation", "folds": 2}
    run = train(tmp_path / "run", batch_size=None, protocol=folds, epochs=1)
    assert len(run.result.networks) == 2


def test_data_that_changed_is_refused_on_resume(tmp_path):
    with pytest.raises(Interruption):
        train(tmp_path / "run", progress=StopAtBatch(6), checkpoint_minutes=1e-9)
    with pytest.raises(ValueError, match="samples"):
        train(tmp_path / "run", Points(shift=0.5))


def test_a_finished_run_is_not_taken_for_one_on_other_data_or_of_another_make(tmp_path):
    train(tmp_path / "run")
    with pytest.raises(RunError, match="test samples are not those"):
        train(tmp_path / "run", Points(shift=0.5))
    wider = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(RunError, match=r"another recipe \(the network that was given in Python is another"):
        train(tmp_path / "run", network=wider)
    train(
        tmp_path / "run", network=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    )  # other weights


def test_settings_that_differ_are_refused_and_named(tmp_path):
    train(tmp_path / "run")
    with pytest.raises(RunError, match=r"another recipe \(loss.weight is 1.0 there, 2.0 here\)"):
        train(tmp_path / "run", loss={"name": f"{__name__}:pull", "weight": 2.0})


def test_a_start_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="cannot take a batch of this data"):
        train(tmp_path / "run", network=nn.Linear(6, 3))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Identity(), None),
        (nn.Unflatten(1, (5, 1)), "must return one vector per sample"),
        ("Linear", "unknown network 'Linear'"),
        (3, "network must be a torch.nn.Module, not int"),
    ],
)
def test_what_a_network_may_be(tmp_path, module, message):
    if message is None:
        with pytest.raises(ValueError, match=r"(?i)parameter"):
            train(tmp_path / "run", network=module)
        return
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", network=module)


def test_evaluate_takes_objects_again_and_refuses_other_data(tmp_path):
    run = train(tmp_path / "run")
    found = nearkin.evaluate(run, Points(), network=network(), progress=False)
    assert found.opened.scores.recall_at == run.result.test.recall_at
    assert found.file.exists()
    with pytest.raises(RunError, match="test samples are not those"):
        other = Points()
        other.points += 1
        nearkin.evaluate(run, other, network=network(), progress=False)
    with pytest.raises(ValueError, match="given in Python"):
        nearkin.evaluate(run.path, network=network(), progress=False)


def test_a_result_knows_classes_and_fingerprints(tmp_path):
    data = train(tmp_path / "run").result.data
    assert len(data.test.class_names) == 8
    assert set(data.train.class_names).isdisjoint(data.test.class_names)
    assert len({data.train.fingerprint, data.validation.fingerprint, data.test.fingerprint}) == 3


def test_runs_and_results_show_themselves(tmp_path):
    run = train(tmp_path / "run")
    assert "Recall@1" in str(run)
    assert "<table>" in run._repr_html_()
    pandas = pytest.importorskip("pandas")
    assert isinstance(run.to_pandas(), pandas.DataFrame)
    assert len(run.result.to_pandas()) == 1


def test_objects_cannot_be_sent_to_other_processes(tmp_path):
    pytest.importorskip("optuna")
    with pytest.raises(RunError, match="data, network given in Python cannot be sent to other processes"):
        nearkin.tune(
            Points(),
            network=network(),
            loss=pull,
            ranges=["loss.weight=0.1:1"],
            trials=2,
            jobs=2,
            output=tmp_path / "search",
            progress=False,
        )


def test_a_search_over_objects_in_this_process(tmp_path):
    pytest.importorskip("optuna")
    search = nearkin.tune(
        Points(),
        network=network(),
        loss=pull,
        ranges={"loss.weight": "0.1:1", "optimizer.lr": "1e-4:1e-2:log"},
        trials=2,
        epochs=1,
        batch_size=20,
        output=tmp_path / "search",
        progress=False,
    )
    assert len(search.records()) == 2
    assert search.best_run().finished


def test_a_word_may_stand_for_the_data(tmp_path, small_recipe):
    file = tmp_path / "recipe.toml"
    file.write_text(Recipe.parse(small_recipe).to_toml())
    run = nearkin.train(file, output=tmp_path / "run", epochs=1, progress=False)
    assert run.terms["training"]["epochs"] == 1
    again = nearkin.train(run.path, output=tmp_path / "again", progress=False)  # a run stands for its recipe
    assert again.result.test == run.result.test


def test_importing_nearkin_loads_no_torch():
    code = "import nearkin, sys; assert 'torch' not in sys.modules; print(sorted(nearkin.__all__))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'train'" in told


@pytest.mark.parametrize("name", nearkin.__all__)
def test_every_public_name_is_there(name):
    assert getattr(nearkin, name) is not None
    assert name in dir(nearkin)
