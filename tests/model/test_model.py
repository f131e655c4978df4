"""Whatever a user has at hand goes through a model, and the numbers depend on nothing else."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from nearkin import data, networks
from nearkin.data import AsIs, ImageArray, PerSample, SampleSet, Texts, Vectors
from nearkin.model import Model
from nearkin.networks import Embedder, WrappedNetwork

SIZE = 16


def image_model(seed: int = 0, *, transform: str = "resized_crop", width: int = 4) -> Model:
    """A network of colour images of any size."""
    network = networks.build("convnet", channels=3, size=SIZE, width=width, embedding_dim=8, seed=seed)
    made = data.transforms.build(transform, preprocessing=network.preprocessing, train=False)
    return Model([Embedder(network.eval(), made, made, transform_spec={"name": transform})])


def pictures(count: int = 7) -> list[Image.Image]:
    numbers = np.random.default_rng(0)
    sizes = numbers.integers(20, 60, (count, 2))
    return [
        Image.fromarray(numbers.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for height, width in sizes
    ]


@pytest.fixture
def folder(tmp_path) -> Path:
    for number, picture in enumerate(pictures()):
        picture.save(tmp_path / f"{number}.png")
    return tmp_path


class Lengths(nn.Module):
    """A network of texts: a learnt vector per character, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, 5)

    def forward(self, texts: list[str]) -> torch.Tensor:
        return torch.stack(
            [self.letters(torch.tensor([ord(c) % 256 for c in text])).sum(0) for text in texts]
        )


def own_model(module: nn.Module, features: int) -> Model:
    return Model([Embedder(WrappedNetwork(module, features).eval(), AsIs(), AsIs())])


# Kinds of inputs.


def test_files_pictures_and_a_folder_are_the_same_images(folder):
    model = image_model()
    files = sorted(folder.glob("*.png"))
    expected = model.embed([str(file) for file in files])
    assert expected.shape == (7, 8)
    assert expected.dtype == torch.float32
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(7))
    torch.testing.assert_close(model.embed(files), expected)
    torch.testing.assert_close(model.embed(folder), expected)
    torch.testing.assert_close(model.embed(str(folder)), expected)
    torch.testing.assert_close(model.embed(pictures()), expected)
    torch.testing.assert_close(model.embed(str(files[3])), expected[3:4])
    torch.testing.assert_close(model.embed(pictures()[3]), expected[3:4])
    torch.testing.assert_close(model.embed(iter(files)), expected)


def test_hidden_files_of_a_folder_are_left_out_as_in_training(folder):
    (folder / ".trash").mkdir()
    for name in ("._0.png", ".trash/1.png"):
        (folder / name).write_bytes(b"\x00\x05\x16\x07")
    assert len(image_model().embed(folder)) == 7


def test_arrays_and_tensors_in_both_orders_of_axes_are_the_same_images():
    model = image_model(transform="none")
    pixels = torch.randint(0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8)
    expected = model.embed(pixels)
    torch.testing.assert_close(model.embed(pixels.numpy()), expected)
    torch.testing.assert_close(model.embed(pixels.permute(0, 2, 3, 1).numpy()), expected)
    torch.testing.assert_close(model.embed(list(pixels)), expected)
    torch.testing.assert_close(model.embed(pixels[2]), expected[2:3])
    torch.testing.assert_close(model.embed(pixels[2].permute(1, 2, 0).numpy()), expected[2:3])
    torch.testing.assert_close(model.embed(SampleSet(ImageArray(pixels), [0, 1, 2, 3, 4])), expected)
    torch.testing.assert_close(model.embed(ImageArray(pixels)), expected)


def test_arrays_with_opacity_are_the_images_that_files_of_them_are(tmp_path):
    model = image_model()
    numbers = np.random.default_rng(0)
    pixels = numbers.integers(0, 256, (2, 24, 30, 4), dtype=np.uint8)
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
    expected = model.embed(tmp_path)
    torch.testing.assert_close(model.embed(pixels), expected)
    torch.testing.assert_close(model.embed(pixels[1]), expected[1:])
    torch.testing.assert_close(model.embed(torch.from_numpy(pixels)), expected)


def test_the_array_of_a_picture_is_embedded_without_a_warning():
    picture = pictures(1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(image_model().embed(np.asarray(picture)), image_model().embed(picture))


def test_grey_images_need_no_axis_for_channels():
    network = networks.build("convnet", size=SIZE, width=4, embedding_dim=8)
    plain = data.transforms.build("none", preprocessing=network.preprocessing, train=False)
    model = Model([Embedder(network.eval(), plain, plain)])
    pixels = torch.randint(0, 256, (5, 1, SIZE, SIZE), dtype=torch.uint8)
    torch.testing.assert_close(model.embed(pixels[:, 0]), model.embed(pixels))
    torch.testing.assert_close(model.embed(pixels[:3, 0]), model.embed(pixels)[:3])  # no colour image
    torch.testing.assert_close(model.embed(pixels[2, 0].numpy()), model.embed(pixels[2:3]))


def test_batches_of_a_data_loader_are_what_the_network_takes():
    model = image_model(transform="none")
    pixels = torch.randint(0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8)
    inputs = model.network.preprocessing.normalize(pixels)
    expected = normalize(model.network(inputs).detach(), dim=1)
    torch.testing.assert_close(model.embed(pixels), expected)
    labelled = DataLoader(TensorDataset(inputs, torch.arange(5)), batch_size=2)
    torch.testing.assert_close(model.embed(labelled), expected)
    torch.testing.assert_close(model.embed(DataLoader(inputs, batch_size=3)), expected)
    with pytest.raises(ValueError, match="nothing to embed: the DataLoader has no batch"):
        model.embed(DataLoader(TensorDataset(torch.zeros(0, 3, SIZE, SIZE))))


def test_texts_one_or_several():
    model = own_model(Lengths(), 5)
    texts = ["wren", "a gull", "gulls and wrens"]
    expected = normalize(model.network(texts).detach(), dim=1)
    torch.testing.assert_close(model.embed(texts), expected)
    torch.testing.assert_close(model.embed("a gull"), expected[1:2])
    torch.testing.assert_close(model.embed(Texts(texts)), expected)


def test_vectors_one_or_several():
    model = own_model(nn.Linear(6, 3), 3)
    vectors = torch.randn(4, 6)
    expected = normalize(model.network(vectors).detach(), dim=1)
    torch.testing.assert_close(model.embed(vectors), expected)
    torch.testing.assert_close(model.embed(vectors.double().numpy()), expected)
    torch.testing.assert_close(model.embed(vectors[1]), expected[1:2])
    torch.testing.assert_close(model.embed(Vectors(vectors)), expected)


def test_a_module_of_images_with_a_transform_of_ones_own_takes_paths(folder):
    def seen(image: torch.Tensor) -> torch.Tensor:
        return image[:, :8, :8].float() / 255

    network = WrappedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), 3).eval()
    model = Model([Embedder(network, PerSample(seen), PerSample(seen))])
    assert model.embed([str(file) for file in sorted(folder.glob("*.png"))]).shape == (7, 3)
    torch.testing.assert_close(model.embed(folder), model.embed(pictures()))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "nothing to embed"),
        (3, "cannot embed int"),
        (None, "cannot embed NoneType"),
        (torch.zeros(2, 3, 4, 4), "neither images .*; give images as bytes from 0 to 255"),
        (b"\xff\xd8\xff", "cannot embed bytes: open a picture first"),
        (["no_such_file.png"], "there is no file no_such_file.png"),
        ([object()], "object"),
    ],
)
def test_what_cannot_be_embedded_is_refused_in_a_sentence(inputs, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message) as caught:
        image_model().embed(inputs)
    assert "\n" not in str(caught.value)


# The numbers.


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_neither_the_batch_size_nor_the_order_changes_the_numbers(folder, batch_size):
    model, files = image_model(), sorted(folder.glob("*.png"))
    expected = model.embed(files)
    assert (model.embed(files, batch_size=batch_size) - expected).abs().max() <= 1e-5
    turned = model.embed(files[::-1], batch_size=batch_size)
    assert (turned.flip(0) - expected).abs().max() <= 1e-5


def test_a_network_in_training_mode_is_used_in_evaluation_mode():
    model = image_model(transform="none")
    pixels = torch.randint(0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8)
    expected = model.embed(pixels)
    model.network.train()
    torch.testing.assert_close(model.embed(pixels), expected)


def test_several_networks_stand_side_by_side():
    first, second = image_model(0, transform="none"), image_model(1, transform="none")
    both = Model([*first.embedders, *second.embedders])
    pixels = torch.randint(0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8)
    parts = torch.cat([first.embed(pixels), second.embed(pixels)], dim=1)
    torch.testing.assert_close(both.embed(pixels), parts / 2**0.5)
    assert both.embedding_dim == 16
    with pytest.raises(ValueError, match="this model has 2 networks"):
        _ = both.network
    with pytest.raises(ValueError, match="at least one network"):
        Model([])


def test_similarities_are_cosines():
    model = own_model(nn.Linear(6, 3), 3)
    a, b = torch.randn(4, 6), torch.randn(2, 6)
    expected = torch.cosine_similarity(model.network(a)[:, None], model.network(b)[None], dim=2)
    torch.testing.assert_close(model.similarity(a, b), expected.detach())


def test_progress_hears_every_batch(folder):
    heard: list[tuple[int, int]] = []
    image_model().embed(folder, batch_size=3, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(3, 7), (6, 7), (7, 7)]


# Files that cannot be read.


def test_an_unreadable_file_is_named(folder):
    (folder / "3.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"3\.png"):
        image_model().embed(folder)


def test_unreadable_files_are_skipped_on_request_and_listed(folder):
    model = image_model()
    kept = [file for file in sorted(folder.glob("*.png")) if file.name not in ("3.png", "5.png")]
    expected = model.embed(kept)
    (folder / "3.png").write_bytes(b"not an image")
    whole = (folder / "5.png").read_bytes()
    (folder / "5.png").write_bytes(whole[: len(whole) // 2])
    torch.testing.assert_close(model.embed(folder, skip_bad=True), expected)
    assert [Path(name).name for name, _ in model.skipped] == ["3.png", "5.png"]
    assert all(reason for _, reason in model.skipped)
    model.embed(kept, skip_bad=True)
    assert model.skipped == []  # of the last call


def test_nothing_but_unreadable_files_is_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match="none of 1 files can be read"):
        image_model().embed(tmp_path, skip_bad=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no image"):
        image_model().embed(tmp_path / "empty")


# Saving.


def test_a_saved_model_gives_the_same_numbers(tmp_path, folder):
    model = image_model()
    saved = model.save(tmp_path / "model")
    again = Model.read(saved)
    torch.testing.assert_close(again.embed(folder), model.embed(folder), rtol=0, atol=0)
    assert again.fingerprint == model.fingerprint
    assert sorted(path.name for path in saved.iterdir()) == ["card.json", "model.json", "weights.safetensors"]
    assert model.save(saved) == saved  # over itself


def test_several_networks_are_saved_side_by_side(tmp_path):
    both = Model([*image_model(0).embedders, *image_model(1).embedders])
    again = Model.read(both.save(tmp_path / "both"))
    assert again.fingerprint == both.fingerprint
    assert len(again.embedders) == 2


def test_a_network_with_keywords_that_are_lists_keeps_its_fingerprint(tmp_path):
    network = networks.build("mlp", size=8, hidden=(6, 5), embedding_dim=3)
    plain = data.transforms.build("none", preprocessing=network.preprocessing, train=False)
    model = Model([Embedder(network, plain, plain, transform_spec={"name": "none"})])
    assert Model.read(model.save(tmp_path / "mlp")).fingerprint == model.fingerprint


def test_a_module_given_in_python_is_asked_for_again(tmp_path):
    model = own_model(nn.Linear(6, 3), 3)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="was given in Python"):
        Model.read(tmp_path / "model")
    again = Model.read(tmp_path / "model", network=nn.Linear(6, 3), transform=AsIs())
    vectors = torch.randn(4, 6)
    torch.testing.assert_close(again.embed(vectors), model.embed(vectors), rtol=0, atol=0)


def test_another_module_is_refused(tmp_path):
    own_model(nn.Linear(6, 3), 3).save(tmp_path / "model")
    with pytest.raises(ValueError, match="cannot be loaded"):
        Model.read(tmp_path / "model", network=nn.Linear(7, 3), transform=AsIs())


def test_a_folder_with_other_files_is_not_written_into(tmp_path):
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        image_model().save(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "cut", "json"])
def test_a_damaged_model_is_named(tmp_path, damage):
    saved = image_model().save(tmp_path / "model")
    weights = saved / "weights.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-20])
    else:
        (saved / "model.json").write_text("{")
    with pytest.raises(ValueError, match="model") as caught:
        Model.read(saved)
    assert "\n" not in str(caught.value)


# The fingerprint changes exactly when embeddings could.


def test_what_cannot_change_embeddings_does_not_change_the_fingerprint():
    model = image_model()
    first = model.fingerprint
    model.embed(torch.zeros(2, 3, 40, 40, dtype=torch.uint8), batch_size=1)
    model.network.train()
    assert model.fingerprint == first
    assert image_model().fingerprint == first
    assert Model(model.embedders, {"run": "elsewhere"}).fingerprint == first
    assert model.to("cpu").fingerprint == first


@pytest.mark.parametrize("change", ["weight", "buffer", "transform", "preprocessing", "seed", "width"])
def test_what_can_change_embeddings_changes_the_fingerprint(change):
    model = image_model()
    first = model.fingerprint
    if change == "weight":
        with torch.no_grad():
            next(model.network.parameters()).view(-1)[0] += 1e-3
    elif change == "buffer":
        next(b for b in model.network.buffers() if b.is_floating_point()).view(-1)[0] += 1e-3
    elif change == "transform":
        model = image_model(transform="none")
    elif change == "preprocessing":
        model.network.preprocessing = data.Preprocessing(size=SIZE, mean=(0.4,) * 3, std=(0.25,) * 3)
    elif change == "seed":
        model = image_model(1)
    else:
        model = image_model(width=5)
    assert model.fingerprint != first


def test_a_model_prints_what_it_is():
    assert repr(image_model()) == "Model(convnet, embedding_dim=8)"
    assert repr(own_model(nn.Linear(6, 3), 3)) == "Model(Linear, embedding_dim=3)"


def test_the_first_dimensions_alone_are_unit_embeddings():
    model, images = image_model(), pictures()
    whole, small = model.embed(images), model.embed(images, dim=3)
    torch.testing.assert_close(small, normalize(whole[:, :3]))
    torch.testing.assert_close(model.embed(images, dim=8), whole)
    batches = DataLoader(TensorDataset(torch.rand(5, 3, SIZE, SIZE)), batch_size=2)
    torch.testing.assert_close(model.embed(batches, dim=3), normalize(model.embed(batches)[:, :3]))
    two = Model([*image_model(0).embedders, *image_model(1).embedders])
    parts = [image_model(seed).embed(images, dim=3) for seed in (0, 1)]
    torch.testing.assert_close(two.embed(images, dim=6), normalize(torch.cat(parts, dim=1)))
    for wrong in (0, -1, 9):
        with pytest.raises(ValueError, match=rf"dim={wrong} must lie between 1 and 8"):
            model.embed(images, dim=wrong)
    with pytest.raises(ValueError, match="a multiple of its 2 networks"):
        two.embed(images, dim=5)
