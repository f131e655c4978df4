"""Exported files give the model's embeddings where nothing of nearkin is, or are not written."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nearkin
from nearkin import networks
from nearkin.data import ImageArray, Preprocessing, SampleSet, Texts, transforms
from nearkin.data.as_is import AsIs
from nearkin.model import Model
from nearkin.model.exporting import Comparison, ExportError, Recall, Tolerance, TooDifferentError
from nearkin.model.exporting.comparison import whole_classes
from nearkin.model.exporting.graph import UnitEmbeddings, graph_input
from nearkin.networks import Embedder, WrappedNetwork
from nearkin.recipe.held_out import training_data_of
from test_documents import ROOT

SCRIPTS = ROOT / "docs" / "scripts"


def model_of(network: networks.Network, scheme: str = "none") -> Model:
    seen = transforms.build(scheme, network.preprocessing, train=False)
    return Model([Embedder(network.eval(), seen, seen, transform_spec={"name": scheme})])


def small_model(seed: int = 0, scheme: str = "none", channels: int = 3) -> Model:
    made = networks.build("convnet", size=16, width=4, embedding_dim=16, channels=channels, seed=seed)
    return model_of(made, scheme)


def pictures(count: int, size: tuple[int, int] = (16, 16), channels: int = 3, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, *size), generator=generator, dtype=torch.uint8)


@pytest.fixture(scope="module")
def birds(tmp_path_factory) -> Path:
    """Thirty classes of photos that differ in size, a folder each."""
    folder = tmp_path_factory.mktemp("export") / "birds"
    numbers = np.random.default_rng(0)
    for label in range(30):
        (folder / f"bird{label:02}").mkdir(parents=True)
        colour = numbers.integers(30, 225, 3)
        for number in range(4):
            height, width = numbers.integers(24, 50, 2)
            pixels = colour + numbers.integers(-30, 30, (height, width, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"bird{label:02}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(birds) -> Path:
    """A small network trained on the photos, with validation classes."""
    return nearkin.train(
        {"name": "folder", "root": str(birds), "transform": "resized_crop"},
        network={"name": "convnet", "size": 16, "width": 4, "channels": 3, "embedding_dim": 8},
        batch_size=24,
        epochs=1,
        protocol={"name": "fixed_validation", "validation_share": 0.4},
        output=birds.parent / "run",
        progress=False,
    ).path


@pytest.fixture(scope="module")
def onnx_files(run):
    """The run as ONNX, in float32 and in int8."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    written = nearkin.export(run, run.parent / "onnx" / "birds.onnx", int8=True, progress=False)
    return {one.precision: one for one in written}


def scripted(file: Path) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that TorchScript will go
        return torch.jit.load(file)


def naive_recall_at_1(rows: torch.Tensor, labels: torch.Tensor) -> float:
    hits = 0
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        nearest = max(others, key=lambda j: float(rows[i].double() @ rows[j].double()))
        hits += int(labels[nearest] == labels[i])
    return hits / len(rows)


def by_onnxruntime(file: Path, inputs: np.ndarray) -> np.ndarray:
    import onnxruntime  # noqa: PLC0415

    (rows,) = onnxruntime.InferenceSession(str(file)).run(["embeddings"], {"pixels": inputs})
    return rows


def test_onnxruntime_gives_the_models_embeddings_for_batches_of_any_size(run, onnx_files):
    model = nearkin.load(run)
    pixels = pictures(9, size=(16, 16))
    # What the transform would make of these: pictures of the network's size are still resized and cropped.
    taken = graph_input(model).read(ImageArray(pixels), range(9)).numpy()
    assert taken.shape == (9, 16, 16, 3)
    expected = model.embed(pixels).numpy()
    for sizes in ([9], [1, 3, 5]):
        ends = np.cumsum([0, *sizes])
        rows = [by_onnxruntime(onnx_files["float32"].file, taken[a:b]) for a, b in itertools.pairwise(ends)]
        found = np.concatenate(rows)
        assert np.abs(found - expected).max() < 1e-5
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5


def test_the_comparison_is_that_of_the_validation_classes(run, onnx_files):
    """Counted again with the plainest loops, on what onnxruntime gives."""
    model, known = nearkin.load(run), training_data_of(run)
    validation = known.validation
    assert validation.num_classes >= 5
    assert set(validation.class_names) == set(nearkin.Run.existing(run).result.data.validation.class_names)
    taken = graph_input(model).read(validation.samples, range(len(validation))).numpy()
    torchs = model.embed(validation.samples)
    for one in onnx_files.values():
        rows = torch.from_numpy(by_onnxruntime(one.file, taken))
        found = one.comparison
        assert found.samples == len(validation)
        assert found.largest_difference == pytest.approx(float((rows - torchs).abs().max()), abs=1e-6)
        assert found.recall_at_1.torch == pytest.approx(naive_recall_at_1(torchs, validation.labels))
        assert found.recall_at_1.exported == pytest.approx(naive_recall_at_1(rows, validation.labels))
    assert onnx_files["float32"].comparison.largest_difference < 1e-5


def test_the_manifest_says_what_somebody_must_know(run, onnx_files):
    model, one = nearkin.load(run), onnx_files["float32"]
    told = json.loads(one.manifest.read_text())
    assert one.manifest.name == "birds.onnx.json"
    assert told["input"] == {
        "name": "pixels",
        "dtype": "uint8",
        "shape": ["batch", 16, 16, 3],
        "layout": "NHWC",
        "colour": "RGB",
        "values": "0 to 255",
    }
    assert told["output"]["shape"] == ["batch", 8]
    assert told["preprocessing"]["short_side"] == 18
    assert told["preprocessing"]["crop"] == 16
    assert told["fingerprint"] == model.fingerprint
    assert told["threshold"]["similarity"] == model.threshold.similarity
    assert told["files"][0]["sha256"] == hashlib.sha256(one.file.read_bytes()).hexdigest()
    assert told["versions"]["torch"] == torch.__version__
    assert {"onnx", "onnxruntime", "nearkin"} <= told["versions"].keys()
    assert told["compared_with_torch"]["allowed"] == {"difference": 1e-4, "recall_at_1": 0.001}
    assert str(run.parent) not in one.manifest.read_text()


def test_int8_computes_in_eight_bits_with_a_threshold_of_its_own(run, onnx_files):
    import onnx  # noqa: PLC0415

    one = onnx_files["int8"]
    assert one.file.name == "birds.int8.onnx"
    kinds = {node.op_type for node in onnx.load(one.file).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert 0 < one.comparison.largest_difference < 0.15
    told = json.loads(one.manifest.read_text())
    assert told["threshold"]["embeddings"] == "int8"
    assert told["threshold"]["classes"] == nearkin.load(run).threshold.classes
    assert told["calibration"]["training_samples"] == len(training_data_of(run).learnt)


def test_the_documented_python_script_embeds_files_as_the_model_does(run, birds, onnx_files):
    files = sorted(birds.rglob("*.png"))[::17]
    command = [sys.executable, SCRIPTS / "embed_onnx.py", onnx_files["float32"].file, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.array(json.loads(done.stdout)["embeddings"])
    expected = nearkin.load(run).embed(files).numpy()
    assert (found * expected).sum(axis=1).min() > 0.999  # Pillow resizes with other rounding


def test_the_documented_node_script_embeds_files_as_the_model_does(run, birds, onnx_files, tmp_path):
    """With NODE_MODULES naming a folder in which npm installed onnxruntime-node and sharp."""
    modules = Path(os.environ.get("NODE_MODULES", ROOT / "node_modules"))
    if shutil.which("node") is None or not (modules / "onnxruntime-node").is_dir():
        pytest.skip("needs node, and NODE_MODULES: a folder with onnxruntime-node and sharp of npm")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(SCRIPTS / "embed_onnx.mjs", tmp_path)
    files = sorted(birds.rglob("*.png"))[::17]
    command = ["node", tmp_path / "embed_onnx.mjs", onnx_files["float32"].file, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.array(json.loads(done.stdout)["embeddings"])
    expected = nearkin.load(run).embed(files).numpy()
    assert (found * expected).sum(axis=1).min() > 0.99  # sharp resizes in its own way


def test_a_file_that_differs_more_than_stated_is_not_written(tmp_path):
    model = small_model()
    with pytest.raises(TooDifferentError, match=r"model.pt is not written: .* 0 is allowed \(--tolerance\)"):
        model.export(tmp_path / "out", format="torchscript", samples=pictures(5), tolerance=0.0)
    assert list((tmp_path / "out").iterdir()) == []


def test_recall_and_numbers_that_are_none_are_refused():
    allowed = Tolerance.of("float32")
    same = Comparison(100, "samples", 1e-7, 1.0, Recall(0.50, 0.51, 100, 10))
    same.check(allowed, "a.onnx")  # one query
    with pytest.raises(TooDifferentError, match=r"Recall@1 .* is 52.00 %, torch's 50.00 %"):
        Comparison(100, "samples", 1e-7, 1.0, Recall(0.50, 0.52, 100, 10)).check(allowed, "a.onnx")
    Comparison(100, "samples", 0.1, 0.9, Recall(0.50, 0.52, 100, 10)).check(Tolerance.of("int8"), "a.onnx")
    with pytest.raises(TooDifferentError, match="differ from torch's by up to nan"):
        Comparison(100, "samples", math.nan, math.nan).check(allowed, "a.onnx")


def test_torchscript_needs_torch_alone_and_takes_normalised_input_beside(tmp_path):
    model, pixels = small_model(scheme="resized_crop"), pictures(5, size=(20, 30))
    inside, beside = (
        model.export(tmp_path / f"{place}.pt", format="torchscript", preprocessing=place, samples=pixels)[0]
        for place in ("inside", "beside")
    )
    told = json.loads(beside.manifest.read_text())
    assert told["input"] == {
        "name": "inputs",
        "dtype": "float32",
        "shape": ["batch", 3, 16, 16],
        "layout": "NCHW",
    }
    how = told["preprocessing"]
    taken = graph_input(model).read(ImageArray(pixels), range(5))
    scale, shift = (torch.tensor(how[key]).view(3, 1, 1) for key in ("scale", "shift"))
    code = f"import torch; torch.save(torch.jit.load({str(inside.file)!r})(torch.load('x')), 'y')"
    torch.save(taken, tmp_path / "x")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    expected = model.embed(pixels)
    torch.testing.assert_close(torch.load(tmp_path / "y"), expected, atol=1e-5, rtol=0)
    by_hand = taken.permute(0, 3, 1, 2).float() * scale - shift
    found = scripted(beside.file)(by_hand)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_folder_loads_as_the_same_model(tmp_path):
    model, pixels = small_model(), pictures(4)
    (one,) = model.export(tmp_path / "saved", format="folder", samples=pixels)
    assert torch.equal(nearkin.load(one.file).embed(pixels), model.embed(pixels))
    assert json.loads(one.manifest.read_text())["fingerprint"] == model.fingerprint


def test_networks_side_by_side_become_one_file(tmp_path):
    model = Model([*small_model(0).embedders, *small_model(1).embedders])
    (one,) = model.export(tmp_path / "both.pt", format="torchscript", samples=pictures(5))
    assert one.comparison.largest_difference < 1e-5
    assert scripted(one.file)(pictures(2).permute(0, 2, 3, 1)).shape == (2, 32)


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_pixels_are_normalised_in_the_graph_as_before_the_network(order):
    network = networks.build("convnet", size=16, width=4, embedding_dim=8, channels=3)
    mean, std = (100.0, 110.0, 120.0), (50.0, 60.0, 70.0)
    network.preprocessing = Preprocessing(16, mean, std, channel_order=order, value_range=255.0)
    model, pixels = model_of(network), pictures(6)
    graph = UnitEmbeddings(model, pixels=True)
    found = graph(graph_input(model).read(ImageArray(pixels), range(6)))
    torch.testing.assert_close(found, model.embed(pixels), atol=1e-6, rtol=0)


def test_vectors_are_exported_where_some_show_what_they_are(tmp_path):
    vectors = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    network = WrappedNetwork(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), 3)
    model = Model([Embedder(network.eval(), AsIs(), AsIs(), transform_spec={"name": "as_is"})])
    with pytest.raises(ExportError, match="there is no sample to look at"):
        model.export(tmp_path / "a.pt", format="torchscript")
    with pytest.raises(ExportError, match="preprocessing cannot be put inside"):
        model.export(tmp_path / "a.pt", format="torchscript", preprocessing="inside", samples=vectors)
    (one,) = model.export(tmp_path / "a.pt", format="torchscript", samples=vectors)
    torch.testing.assert_close(scripted(one.file)(vectors), model.embed(vectors), atol=1e-6, rtol=0)
    assert json.loads(one.manifest.read_text())["preprocessing"] is None


def test_texts_are_refused_in_one_sentence(tmp_path):
    network = WrappedNetwork(nn.Linear(2, 2), 2)
    model = Model([Embedder(network, AsIs(), AsIs(), transform_spec={"name": "as_is"})])
    with pytest.raises(ExportError, match="this one takes texts: choose --format folder"):
        model.export(tmp_path / "a.onnx", format="torchscript", samples=Texts(["a", "b"]))


def test_mistakes_are_told_before_anything_takes_time(tmp_path):
    model = small_model()
    with pytest.raises(ValueError, match="unknown format 'onx': did you mean onnx"):
        model.export(tmp_path, format="onx")
    with pytest.raises(ExportError, match="there is no int8 torchscript"):
        model.export(tmp_path, format="torchscript", int8=True)
    with pytest.raises(ExportError, match=r"ends in .onnx, and this format in .pt"):
        model.export(tmp_path / "a.onnx", format="torchscript")
    with pytest.raises(ValueError, match=r"tolerance=-1 must be 0 or more"):
        model.export(tmp_path / "a", format="folder", tolerance=-1)
    (tmp_path / "mine.pt").write_text("somebody's")
    with pytest.raises(ExportError, match="no export made it"):
        model.export(tmp_path / "mine.pt", format="torchscript")
    assert (tmp_path / "mine.pt").read_text() == "somebody's"


def test_int8_without_training_samples_says_what_to_give(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ExportError, match="int8 needs training samples"):
        small_model().export(tmp_path / "a.onnx", int8=True)


def test_whole_classes_are_compared():
    labels = [0] * 5 + [1] * 3 + [2] * 4
    samples = SampleSet(ImageArray(pictures(12)), labels)
    assert [len(whole_classes(samples, most)) for most in (1, 8, 9, 11, 12)] == [8, 8, 8, 8, 12]


def test_the_command_prints_both_comparisons_and_says_where_there_is_none(run, nearkin, tmp_path):
    code, out, error = nearkin("export", run, "--format", "torchscript", "-o", tmp_path / "birds.pt")
    assert code == 0, error
    assert "Recall@1, torch" in out.replace("\n", " ")
    assert "samples of validation classes" in out
    code, out, error = nearkin("export", run, "--format", "folder", "-o", tmp_path / "saved", "--json")
    assert code == 0, error
    assert json.loads(out)[0]["compared_with_torch"]["recall_at_1"]["queries"] > 0
    code, out, _ = nearkin("export", tmp_path / "saved", "-f", "torchscript", "-o", tmp_path / "again.pt")
    assert code == 0
    assert "Recall@1 was not compared:" in out
    assert "without the data of its training" in " ".join(out.split())
    code, _, error = nearkin("export", run, "--preprocessing", "outside")
    assert code == 2
    assert "must be inside or beside" in error


def test_a_run_whose_data_is_gone_is_exported_and_says_so(run, birds, tmp_path):
    moved = birds.rename(tmp_path / "elsewhere")
    try:
        (one,) = nearkin.export(run, tmp_path / "a.pt", format="torchscript", progress=False)
        assert one.comparison.recall_at_1 is None
        assert "the data of the run is not at hand" in one.comparison.why_no_recall
        assert one.comparison.of == "images of noise"
        (one,) = nearkin.export(run, tmp_path / "b.pt", format="torchscript", data=moved, progress=False)
        assert one.comparison.recall_at_1.queries > 0
        with pytest.raises((ValueError, OSError)):
            nearkin.export(run, tmp_path / "c.pt", format="torchscript", data=tmp_path / "no", progress=False)
    finally:
        moved.rename(birds)


def test_other_data_is_refused(run, birds, tmp_path):
    other = shutil.copytree(birds, tmp_path / "other")
    shutil.rmtree(other / "bird03")
    with pytest.raises(ValueError, match="its validation classes are others"):
        nearkin.export(run, tmp_path / "a.pt", format="torchscript", data=other, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:resnet18", "timm:vit_tiny_patch16_224", "timm:convnext_atto"])
@pytest.mark.parametrize("pooling", ["gem", "avg+max"])
def test_networks_of_timm_become_onnx(name, pooling, tmp_path):
    pytest.importorskip("onnxruntime")
    model = model_of(networks.build(name, embedding_dim=32, pooling=pooling), "resized_crop")
    (one,) = model.export(tmp_path / "a.onnx", samples=pictures(4, size=(240, 250)))
    assert one.comparison.largest_difference < 1e-4


@pytest.mark.slow
def test_openvino_gives_the_models_embeddings(run, tmp_path):
    pytest.importorskip("openvino")
    full, small = nearkin.export(run, tmp_path / "birds.xml", format="openvino", int8=True, progress=False)
    assert full.comparison.largest_difference < 1e-4
    assert small.comparison.largest_difference < 0.15
    assert {path.name for path in tmp_path.iterdir()} == {
        f"birds{infix}{suffix}" for infix in ("", ".int8") for suffix in (".bin", ".xml", ".xml.json")
    }
