from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nearkin.protocols import execute
from nearkin.recipe import Recipe
from nearkin.training import Run


@pytest.fixture
def explain(nearkin, monkeypatch, tmp_path):
    """Runs ``nearkin explain`` in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    return partial(nearkin, "explain")


def test_forces_and_animations(explain, tmp_path):
    assert explain("forces", "contrastive", "triplet:margin=0.3") == (0, "picture   forces.png\n", "")
    assert (tmp_path / "forces.png").exists()
    (tmp_path / "points.csv").write_text("x,y,label\n1,0,a\n0,1,a\n0.9,0.1,b\n")
    assert explain("forces", "softmax", "--layout", "points.csv", "-o", "own.svg")[0] == 0
    assert explain("forces", "nca", "--space", "plane", "-o", "plane.pdf")[0] == 0
    assert explain("forces", "nca", "--steps", "2", "-o", "moving.html")[0] == 0
    for name in ("own.svg", "plane.pdf", "moving.html"):
        assert (tmp_path / name).exists()


def test_weights_of_made_up_and_of_given_embeddings(explain, tmp_path):
    assert explain("weights", "contrastive", "--classes", "3")[:2] == (0, "picture   weights.png\n")
    generator = np.random.default_rng(0)
    labels = np.repeat(["wren", "gull", "tern"], 4)
    np.savez(tmp_path / "mine.npz", embeddings=generator.normal(size=(12, 6)), labels=labels)
    assert explain("weights", "nca", "--embeddings", "mine.npz", "-o", "mine.svg")[0] == 0
    assert (tmp_path / "mine.svg").exists()


def test_weights_of_a_run_are_those_of_its_own_loss(explain, small_recipe, tmp_path):
    small_recipe["training"]["epochs"] = 1
    recipe = Recipe.parse(small_recipe | {"loss": {"name": "contrastive", "margin": 0.4}}, source="test")
    task = recipe.build()
    run = Run.open(tmp_path / "run", task.description)
    run.begin()
    code, _, err = explain("weights", "--run", tmp_path / "run")
    assert code == 2
    assert "is not finished" in err
    execute(task, run)
    of_run = ("weights", "--run", tmp_path / "run", "--classes", 3)
    assert explain(*of_run, "-o", "train.svg")[0] == 0
    assert explain(*of_run, "--split", "test", "-o", "test.svg")[0] == 0
    assert (tmp_path / "train.svg").read_bytes() != (tmp_path / "test.svg").read_bytes()
    edges = ("edges", "--run", tmp_path / "run", "--classes", 2)
    assert explain(*edges, "-o", "edges.svg")[0] == 0
    drawn = (tmp_path / "edges.svg").read_text()
    assert "contrastive" in drawn
    assert "glyphs, train classes" in drawn
    assert explain(*edges, "proxy_anchor", "-o", "edges.svg")[0] == 0
    assert "proxy_anchor" in (tmp_path / "edges.svg").read_text()


def test_edges_xor_and_perceptron(explain, tmp_path):
    assert explain("edges", "npair", "softmax") == (0, "picture   edges.png\n", "")
    assert explain("edges", "--figure", "20", "-o", "figure.svg")[0] == 0
    code, _, err = explain("edges", "--figure", "19")
    assert code == 2
    assert "figure '19' has no edges: choose one of 17, 18" in err
    assert "leave LOSS, --run and --embeddings out" in explain("edges", "nca", "--figure", "20")[2]
    assert "span" in explain("edges", "nca", "--classes", "8", "--images-per-class", "6")[2]
    assert explain("xor") == (0, "picture   xor.png\n", "")
    assert explain("perceptron", "--seed", "2") == (0, "picture   perceptron.png\n", "")
    for name in ("edges.png", "figure.svg", "xor.png", "perceptron.png"):
        assert (tmp_path / name).exists()


def test_similarities_are_printed_beside_table_1(explain, tmp_path):
    code, out, err = explain("similarities", "contrastive", "multi_similarity", "proxy_nca", "-o", "s.svg")
    assert (code, err) == (0, "")
    assert (tmp_path / "s.svg").exists()
    for part in (
        "Table 1",
        "its mining",
        "from the sample",
        "from the proxy",
        "measurement and Table 1 differ",
    ):
        assert part in out
    assert "multi_similarity, P: printed ✓; measured ✗ alone, ✓ on/off with its mining" in out
    assert "Table 1" not in explain("similarities", "contrastive", "--pair", "positive")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["forces", "tripet"], "did you mean triplet?"),
        (["forces", "triplet:margn=1"], "did you mean margin?"),
        (["forces", "triplet", "-l", "nowhere"], "must be one of triplet, hard"),
        (["forces", "triplet", "-o", "a.jpg"], "a.jpg: pictures are written as png, svg, pdf"),
        (
            ["forces", "triplet", "-o", "a.gif", "--space", "plane"],
            "animations are drawn with --space circle",
        ),
        (["weights", "direction_proxy_nca"], "looks at similarities between proxies as well"),
        (["weights", "--run", "nowhere"], "nowhere does not exist"),
        (["weights", "--embeddings", "nowhere.npz"], "there is no nowhere.npz"),
        (["weights", "--embeddings", "a.npz", "--run", "b"], "--run and --embeddings exclude each other"),
        (["similarities", "tripet"], "did you mean triplet?"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, explain):
    code, out, err = explain(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_a_file_that_is_no_embedding_is_explained(explain, tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    assert (
        "must be an .npz file with the arrays embeddings and labels"
        in explain("weights", "--embeddings", "bad.npz")[2]
    )
    np.savez(tmp_path / "short.npz", embeddings=np.zeros((3, 2)), labels=np.zeros(2))
    assert "must be (N, D) and (N,)" in explain("weights", "--embeddings", "short.npz")[2]
