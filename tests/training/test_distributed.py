from __future__ import annotations

import atexit
import functools
import importlib
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from running import execute, new_run, reopened
from small_recipes import small_values

from nearkin import losses, networks
from nearkin.recipe import Recipe, RecipeError
from nearkin.training import Run
from nearkin.training.class_slices import ClassSlices
from nearkin.training.distributed import Processes, build_accelerator, is_first_process
from nearkin.training.gradient_caching import backward_in_chunks
from nearkin.training.lazy_optimizers import AdamW
from nearkin.training.resuming import optimizer_state

HERE = Path(__file__)
CPU = torch.device("cpu")
IMAGES, CLASSES = 45, 9  # two processes: 22 and 23 images
CASES = [
    ("multi_similarity", None),
    ("multi_similarity", 7),
    ("triplet", None),
    ("margin", None),  # draws its negatives at random and learns a boundary
    ("proxy_anchor", None),
    ("proxy_anchor", 5),
    ("memory", None),
]

HELPERS = Path(__file__).parents[1] / "helpers"
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")]),
}


TOGETHER = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
TRAININGS = {
    "pairs": {},
    "divided classes": {"loss": {"name": "arcface", "scale": 16.0, "sharded": True}},
}


def shared_values(glyphs_root: Path) -> dict:
    """Frozen batch norm: the one thing that would depend on the number of processes."""
    small = small_values(glyphs_root)
    return small | {
        "network": small["network"] | {"freeze_batch_norm": True},
        "loss": {"name": "multi_similarity"},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "training": {"epochs": 3},
    }


def one_step(processes: Processes, name: str, chunk: int | None) -> dict[str, torch.Tensor]:
    """Two batches through a network and a loss: the second's value and all gradients, by name."""
    network = networks.build("convnet", size=16, width=4, embedding_dim=8, seed=0)
    networks.freeze_batch_norm(network)
    loss = losses.build(
        "contrastive" if name == "memory" else name,
        num_classes=CLASSES,
        embedding_dim=8,
        generator=torch.Generator().manual_seed(0),
    )
    if name == "memory":
        loss = losses.CrossBatchMemory(loss, size=64)
    share = processes.share(IMAGES)
    labels = torch.arange(IMAGES) % CLASSES
    for seed in (1, 2):
        network.zero_grad()
        loss.zero_grad()
        images = torch.randn(IMAGES, 1, 16, 16, generator=torch.Generator().manual_seed(seed))
        value = backward_in_chunks(
            network,
            images[share.start : share.stop],
            lambda part: loss(processes.gather(part, IMAGES), labels),
            chunk=chunk,
        )
        processes.sum_gradients(network.parameters())
        processes.average_gradients(loss.parameters())
    parameters = [*network.named_parameters(), *loss.named_parameters()]
    return {"value": value} | {n: p.grad.clone() for n, p in parameters if p.grad is not None}


def divided(processes: Processes, **keywords) -> dict[str, torch.Tensor]:
    """Two steps of proxies that processes divide: what a checkpoint holds, and whether it is taken back."""
    loss = losses.build(
        "arcface",
        num_classes=CLASSES,
        embedding_dim=8,
        generator=torch.Generator().manual_seed(0),
        **keywords,
    )
    slices = ClassSlices(loss, processes, divided=True)
    optimizer = AdamW([loss.proxies], lr=0.1)
    labels = torch.arange(IMAGES) % CLASSES
    for seed in (1, 2):
        optimizer.zero_grad()
        loss(torch.randn(IMAGES, 8, generator=torch.Generator().manual_seed(seed)), labels).backward()
        optimizer.step()
    state, moments = loss.state_dict(), optimizer_state(optimizer)[0]
    whole = slices.collect_loss(state), slices.collect_moments(optimizer, moments)
    in_file = processes.ask_first(lambda: whole)
    own, own_moments = slices.own_loss(in_file[0]), slices.own_moments(optimizer, in_file[1])
    assert slices.common(loss) == ([loss.proxies] if processes.count == 1 else [])
    for expected, found in ((state, own), (moments, own_moments)):
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    return {"owned": torch.tensor(len(loss.proxies)), **in_file[0], **in_file[1]}


def in_one_of_two_processes(rank: int, folder: Path) -> None:
    """All that two processes are asked for: it takes longer to start them than to do it."""
    atexit.register(lambda: (folder / f"group of {rank}").write_text(str(group())))  # the last to be called
    torch.set_num_threads(1)
    meeting = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": 2}  # instead of a port
    dist.init_process_group = functools.partial(dist.init_process_group, **meeting)
    processes = Processes.of(build_accelerator("fp32"))
    group = weakref.ref(dist.group.WORLD)
    importlib.import_module("torch.distributed.nn.functional")  # as optimisers of torch do
    found = {f"{name} {chunk}": one_step(processes, name, chunk) for name, chunk in CASES}
    found["divided"] = divided(processes)
    found["divided and sampled"] = divided(processes, sample=0.5)
    processes.seed_apart(0)
    torch.rand(1 + rank)
    states = processes.random_states()
    drawn = torch.rand(1)
    processes.set_random_states(states)
    mine = torch.full((2, 2), float(rank))
    processes.copy_from_first([mine])
    found["rest"] = {
        "draws": torch.cat([drawn, torch.rand(1)]),
        "copied": mine,
        "answer": processes.ask_first(lambda: torch.tensor(10 + rank)),
        "labels": processes.gather(torch.arange(3)[list(processes.share(3))], 3),
    }
    torch.save(found, folder / f"{rank}.pt")
    for name in TRAININGS:
        execute(new_run(folder / name, Recipe.read(folder / f"{name}.toml")))
    if rank == 1:
        raise SystemExit(3)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, glyphs_root) -> Path:
    """The folder of two processes, the second of which failed when all was done."""
    folder = tmp_path_factory.mktemp("two")
    for name, changes in TRAININGS.items():
        recipe = Recipe.parse(shared_values(glyphs_root) | changes)
        (folder / f"{name}.toml").write_text(recipe.to_toml())
        execute(new_run(folder / f"{name} alone", recipe))
    processes = [
        subprocess.Popen(
            [sys.executable, HERE, str(rank), str(folder)],
            env=ENVIRONMENT | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) | TOGETHER,
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 3]
    return folder


@pytest.fixture(scope="module")
def found_by_two(two_processes) -> list[dict]:
    return [torch.load(two_processes / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize(("name", "chunk"), CASES)
def test_two_processes_give_the_loss_and_gradients_of_one(name, chunk, found_by_two):
    expected = one_step(Processes(0, 1, CPU), name, None)
    for found in (of_rank[f"{name} {chunk}"] for of_rank in found_by_two):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert value.abs().max() > 0, key
            assert (found[key] - value).abs().max() < 1e-5 * max(1, value.abs().max()), key


def test_proxies_get_the_very_same_gradient_everywhere(found_by_two):
    first, second = (found["proxy_anchor None"]["proxies"] for found in found_by_two)
    assert torch.equal(first, second)


def test_a_checkpoint_holds_the_proxies_of_all_processes(found_by_two):
    alone = divided(Processes(0, 1, CPU))
    for found, owned in zip((of_rank["divided"] for of_rank in found_by_two), (4, 5), strict=True):
        assert found.pop("owned") == owned
        assert found.keys() == alone.keys() - {"owned"}
        for name, value in found.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-5, atol=1e-5)


def test_a_checkpoint_holds_the_rows_that_any_process_has_updated(found_by_two):
    first, second = (found["divided and sampled"] for found in found_by_two)
    assert torch.equal(first["0.rows"], second["0.rows"])
    assert sorted(first["0.rows"].tolist()) == list(range(CLASSES))  # every class was in the batch
    assert first["0.exp_avg"].shape == (CLASSES, 8)


@pytest.mark.parametrize("count", [2, 20])
def test_what_cannot_be_divided_is_refused(count):
    pairs, few = losses.build("contrastive"), losses.build("arcface", num_classes=CLASSES, embedding_dim=8)
    with pytest.raises(ValueError, match="Contrastive has no classes to divide"):
        ClassSlices(pairs, Processes(0, count, CPU), divided=True)
    ClassSlices(pairs, Processes(0, count, CPU), divided=False)
    if count > CLASSES:
        with pytest.raises(ValueError, match="9 classes cannot be divided among 20 processes"):
            ClassSlices(few, Processes(0, count, CPU), divided=True)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "multi_similarity"}, "has no proxies, which sharded is about"),
        ({"name": "proxy_repulsion"}, "cannot be divided among processes"),
        ({"name": "proxy_gml"}, "use regularization=0"),
        ({"name": "arcface", "distil": {}}, "distil.* needs all classes in each process"),
    ],
)
def test_a_recipe_says_what_cannot_be_divided(table, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.parse({"loss": table | {"sharded": True}})


def test_what_processes_tell_each_other(found_by_two):
    first, second = (found["rest"] for found in found_by_two)
    for own in (first, second):
        assert own["draws"][0] == own["draws"][1]
        assert own["copied"].eq(0).all()
        assert own["answer"] == 10
        assert own["labels"].tolist() == [0, 1, 2]
    assert first["draws"][0] != second["draws"][0]


def test_alone_nothing_changes():
    alone = Processes(0, 1, CPU)
    rows = torch.randn(3, 2)
    assert alone.gather(rows, 3) is rows
    assert alone.share(5) == range(5)
    assert alone.ask_first(lambda: 7) == 7


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"RANK": "1"}, True),
        ({"WORLD_SIZE": "2", "RANK": "1"}, False),
        ({"WORLD_SIZE": "2"}, True),
    ],
)
def test_only_the_first_process_writes(environment, first, monkeypatch, tmp_path):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() == first
    run = new_run(tmp_path / "run", Recipe.parse({}))
    run.write_metrics([{"epoch": 0}])
    assert (tmp_path / "run").exists() == first


@pytest.fixture
def shared_recipe(glyphs_root) -> dict:
    return shared_values(glyphs_root)


def train_in(count: int, recipe: Path, output: Path) -> subprocess.Popen:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return subprocess.Popen(
        [*launcher, "-m", "nearkin", "train", str(recipe), "-o", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def finish(recipe: Path, output: Path, count: int = 2) -> None:
    process = train_in(count, recipe, output)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err


def assert_alike(found: Run, expected: Run) -> None:
    for key in ("loss", "recall_at_1", "map_at_r"):
        rows = [[row[key] for row in run.metrics() if key in row] for run in (found, expected)]
        assert rows[0] == pytest.approx(rows[1], rel=1e-4, abs=2e-3 if key != "loss" else 0)
    weights, others = found.read_network(), expected.read_network()
    assert all(torch.allclose(weights[name], others[name], atol=1e-4) for name in others)


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_end_where_a_single_one_does(name, two_processes):
    together, alone = (Run.existing(two_processes / folder) for folder in (name, f"{name} alone"))
    assert_alike(together, alone)
    if name == "divided classes":
        rows = [[row["loss"] for row in run.metrics() if "loss" in row] for run in (together, alone)]
        assert rows[0] == pytest.approx(rows[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["stml", "pseudo_labels"])
def test_torchrun_learns_without_labels_as_a_single_process_does(method, shared_recipe, tmp_path):
    values = shared_recipe | {
        "data": shared_recipe["data"] | {"views": 2},
        "sampler": {"batch_size": 20},
        "optimizer": {"name": "sgd", "lr": 1e-3},
        "training": {"epochs": 2},
        "protocol": {"name": "semi_supervised", "labelled_classes": 0.5},
        "unlabelled": {"name": method, "batch_size": 24, "weight": 0.01},
    }
    recipe = Recipe.parse(values)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    alone = new_run(tmp_path / "alone", recipe)
    execute(alone)
    finish(tmp_path / "recipe.toml", tmp_path / "two")
    assert_alike(Run.existing(tmp_path / "two"), alone)


@pytest.mark.slow
def test_classes_divided_among_four_end_where_a_single_process_does(shared_recipe, tmp_path):
    recipe = Recipe.parse(shared_recipe | TRAININGS["divided classes"])
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    alone = new_run(tmp_path / "alone", recipe)
    execute(alone)
    finish(tmp_path / "recipe.toml", tmp_path / "divided", 4)
    assert_alike(Run.existing(tmp_path / "divided"), alone)


@pytest.mark.parametrize("rank", [0, 1])
def test_no_process_ends_among_the_threads_of_its_group(rank, two_processes):
    """Nor one that failed: gloo's threads would abort it on its way out, now and then."""
    assert (two_processes / f"group of {rank}").read_text() == "None"


def kill_after(epochs: int, process: subprocess.Popen, folder: Path) -> None:
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < epochs + 1:
        assert process.poll() is None
        time.sleep(0.01)
    for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        one.kill()
    process.communicate()
    assert not (folder / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "training"),
    [
        # With all that has a state: trained batch norm, random mining, a memory, averaged weights.
        ({"name": "margin", "memory": {"size": 60}}, {"epochs": 8, "ema": 0.9}),
        ({"name": "adaface", "sharded": True}, {"epochs": 8}),
        ({"name": "arcface", "sharded": True, "sample": 0.3}, {"epochs": 8}),
    ],
    ids=["memory", "divided", "divided and sampled"],
)
def test_killed_processes_end_with_the_same_result(loss, training, small_recipe, tmp_path):
    recipe = small_recipe | {"loss": loss, "training": training}
    (tmp_path / "recipe.toml").write_text(Recipe.parse(recipe).to_toml())
    finish(tmp_path / "recipe.toml", tmp_path / "whole")
    whole = Run.existing(tmp_path / "whole")
    assert "each of 2 processes has its own batch norm" in whole.result.warnings[0]
    process = train_in(2, tmp_path / "recipe.toml", tmp_path / "killed")
    kill_after(3, process, tmp_path / "killed")
    finish(tmp_path / "recipe.toml", tmp_path / "killed")
    killed = Run.existing(tmp_path / "killed")
    assert killed.result_file.read_text() == whole.result_file.read_text()


@pytest.mark.slow
def test_divided_classes_go_on_in_one_process(shared_recipe, tmp_path):
    shared_recipe |= {
        **TRAININGS["divided classes"],
        "optimizer": {"name": "sgd", "lr": 0.01},  # larger steps make neighbours of rounding errors
        "training": {"epochs": 8},
    }
    recipe = Recipe.parse(shared_recipe)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    alone = new_run(tmp_path / "alone", recipe)
    execute(alone)
    kill_after(3, train_in(2, tmp_path / "recipe.toml", tmp_path / "killed"), tmp_path / "killed")
    killed = reopened(tmp_path / "killed")
    execute(killed)
    assert_alike(killed, alone)


if __name__ == "__main__":
    in_one_of_two_processes(int(sys.argv[1]), Path(sys.argv[2]))
