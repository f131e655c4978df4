from __future__ import annotations

import numpy as np
import pytest
import torch
from other_peoples_data import Columns, Pairs
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from nearkin import data
from nearkin.data import as_data_set

LABELS = [0, 0, 1, 1, 2, 2, 3, 3]
TEXTS = [f"text {i}" for i in range(8)]


def sample_of_first_label(found):
    """The samples of class 0, wherever they went."""
    split = found.train if "0" in found.train.class_names else found.test
    chosen = split.of_classes([split.class_names.index("0")])
    return [chosen.samples[i] for i in range(len(chosen))]


def npy_path(tmp_path):
    np.save(tmp_path / "v.npy", np.arange(16.0).reshape(8, 2))
    return tmp_path / "v.npy"


PIXELS = torch.arange(8 * 3 * 4 * 5).remainder(256).byte().view(8, 3, 4, 5)
INPUTS = {
    "texts": lambda _: ((TEXTS, LABELS), data.Texts, TEXTS[0]),
    "array of texts": lambda _: ((np.array(TEXTS), LABELS), data.Texts, TEXTS[0]),
    "PIL": lambda _: (
        ([Image.new("L", (3, 2), i) for i in range(8)], LABELS),
        data.Pictures,
        torch.zeros(1, 2, 3, dtype=torch.uint8),
    ),
    "NCHW": lambda _: ((PIXELS, torch.tensor(LABELS)), data.ImageArray, PIXELS[0]),
    "NHWC": lambda _: ((PIXELS.permute(0, 2, 3, 1).numpy(), LABELS), data.ImageArray, PIXELS[0]),
    "NHW": lambda _: ((PIXELS[:, 0].numpy(), LABELS), data.ImageArray, PIXELS[0, :1]),
    "list of arrays": lambda _: ((list(PIXELS.numpy()), LABELS), data.ImageArray, PIXELS[0]),
    "vectors": lambda _: ((np.arange(16.0).reshape(8, 2), LABELS), data.Vectors, torch.tensor([0.0, 1])),
    "npy": lambda tmp: ((npy_path(tmp), LABELS), data.Vectors, torch.tensor([0.0, 1])),
    "npy by str": lambda tmp: ((str(npy_path(tmp)), LABELS), data.Vectors, torch.tensor([0.0, 1])),
    "Dataset": lambda _: (Pairs(list(zip(TEXTS, LABELS, strict=True))), data.DatasetSamples, TEXTS[0]),
    "TensorDataset": lambda _: (
        TensorDataset(torch.arange(8.0), torch.tensor(LABELS)),
        data.DatasetSamples,
        torch.tensor(0.0),
    ),
    "Hugging Face": lambda _: (
        Columns([{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]),
        data.HuggingFaceSamples,
        TEXTS[0],
    ),
    "SampleSet": lambda _: (data.SampleSet(data.Texts(TEXTS), LABELS), data.Texts, TEXTS[0]),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_becomes_a_data_set(kind, tmp_path):
    given, expected_kind, first = INPUTS[kind](tmp_path)
    found = as_data_set(given, test_fraction=0.5)
    assert isinstance(found.train.samples, expected_kind)
    assert (found.train.num_classes, found.test.num_classes) == (2, 2)
    assert sorted(found.train.class_names + found.test.class_names) == ["0", "1", "2", "3"]
    one = sample_of_first_label(found)[0]
    assert one.equal(first) if isinstance(first, torch.Tensor) else one == first
    assert as_data_set(given, test_fraction=0).test is None
    assert as_data_set(found) is found


def test_paths_of_images(save_image):
    paths = [save_image(f"{i}.jpg") for i in range(4)]
    for given in (paths, list(map(str, paths))):
        found = as_data_set((given, list("abab")))
        assert isinstance(found.train.samples, data.ImageFiles)
        assert found.train[0][0].shape == (3, 60, 80)


def test_folders_and_tables(tmp_path, save_image):
    for name in "abcd":
        save_image(f"photos/{name}/1.jpg")
    assert as_data_set(tmp_path / "photos", test_fraction=0.25).test.num_classes == 1
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + "".join(f"photos/{name}/1.jpg,{name}\n" for name in "abcd"))
    assert as_data_set(str(table)).train.num_classes == 2
    assert data.folder(tmp_path / "photos").name == "folder"
    assert data.table(table).name == "csv"


def test_splits_of_any_kinds():
    found = as_data_set(
        {"train": (TEXTS, LABELS), "validation": (["x"], ["v"]), "test": Pairs([("y", "t")]), "query": None},
        name="mine",
    )
    assert (found.name, len(found.train), found.validation.class_names) == ("mine", 8, ("v",))
    assert found.test.class_names == ("t",)
    with pytest.raises(
        ValueError, match="class '0' is in train and in test, and a class may be in one split"
    ):
        as_data_set({"train": (TEXTS, LABELS), "test": (TEXTS, LABELS)})


def test_names_of_classes():
    torchvision_like = Pairs([("x", i % 3) for i in range(6)], classes=["wren", "gull", "tern"])
    assert as_data_set(torchvision_like, test_fraction=0).train.class_names == ("gull", "tern", "wren")
    rows = Columns([{"text": "x", "label": i % 2} for i in range(4)], names=["no", "yes"])
    assert as_data_set(rows, test_fraction=0).train.class_names == ("no", "yes")
    unlabelled = Columns([{"text": "x", "label": -1}], names=["no", "yes"])
    with pytest.raises(ValueError, match="row 0 has no label: its label is -1"):
        as_data_set(unlabelled)


def test_columns_are_named_or_found():
    rows = Columns([{"title": "x", "species": str(i % 3), "text": "no"} for i in range(6)])
    found = as_data_set(rows, label="species", sample="title", test_fraction=0)
    assert found.train[0][0] == "x"
    with pytest.raises(
        ValueError, match='say which column holds the label with label="…": .* title, species, text'
    ):
        as_data_set(rows)
    with pytest.raises(
        ValueError, match="label='kind' is not a column: the data set has title, species, text"
    ):
        as_data_set(rows, label="kind")


class Stream(IterableDataset):
    def __iter__(self):
        yield "a", 0


class HuggingFaceStream:
    column_names = features = ("text",)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((TEXTS, LABELS[:7]), "8 samples but 7 labels"),
        ((TEXTS, [0] * 8), "all samples to learn from have the label '0': at least two classes"),
        (([], []), "there are no samples"),
        ((torch.zeros(0, 4), []), "there are no samples"),
        (Pairs([]), "there are no samples"),
        ((TEXTS, None), "labels must be a list with one value per sample, not None"),
        ((TEXTS, torch.zeros(8, 3)), r"not an array of shape \(8, 3\)"),
        (TEXTS, "a list without labels: give a pair"),
        (data.Texts(TEXTS), "a Texts without labels"),
        (torch.zeros(3, 3), "a Tensor without labels"),
        (3, "a int without labels"),
        (Stream(), "an IterableDataset has no length"),
        (HuggingFaceStream(), "an IterableDataset has no length"),
        (DataLoader(TensorDataset(torch.zeros(2))), "a DataLoader gives batches: give its .dataset"),
        ((torch.full((8, 2), float("nan")), LABELS), "vector 0 holds a number that is not finite"),
        ((torch.zeros(8, 3, 4, 4), LABELS), r"an array of torch.float32 \(8, 3, 4, 4\) is neither images"),
        ((torch.zeros(8, 3, dtype=torch.long), LABELS), "an array of torch.int64"),
        ((torch.zeros(8, 7, 4, 4).byte(), LABELS), "is neither images"),
        (([*TEXTS[:7], 3], LABELS), "a list of int and str is of no known kind"),
        (([np.zeros(2), np.zeros(3)], [0, 1]), "arrays of 2 different shapes"),
        (("x.txt", LABELS), "samples in one file must be a .npy array"),
        ({"test": (TEXTS, LABELS)}, 'needs the key "train"'),
        ({"train": (TEXTS, LABELS), "dev": (TEXTS, LABELS)}, "'dev' is not a split: the keys may be train"),
        ({"train": (TEXTS, LABELS), "test": (TEXTS, LABELS[:2])}, "test: 8 samples but 2 labels"),
        ((TEXTS, [*LABELS[:7], "x"]), "labels must be of one kind"),
    ],
)
def test_wrong_things_are_refused_in_a_sentence(given, complaint):
    with pytest.raises((ValueError, TypeError), match=complaint) as refused:
        as_data_set(given)
    assert "\n" not in str(refused.value)


def test_wrong_keywords_and_paths(tmp_path):
    for wrong in (float("nan"), -0.1, 1.0):
        with pytest.raises(ValueError, match="test_fraction=.* must be 0 or lie between 0 and 1"):
            as_data_set((TEXTS, LABELS), test_fraction=wrong)
    with pytest.raises(ValueError, match=r"test_fraction=0.1 of 4 classes holds out 0"):
        as_data_set((TEXTS, LABELS), test_fraction=0.1)
    with pytest.raises(ValueError, match="seed=-1 must be at least 0"):
        as_data_set((TEXTS, LABELS), seed=-1)
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        as_data_set(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="vectors need labels"):
        as_data_set(npy_path(tmp_path))


def test_columns_of_pandas_are_samples_and_labels():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a wren", "a gull", "wrens", "gulls"], "label": ["wren", "gull"] * 2})
    found = as_data_set((frame["text"], frame["label"].astype("category")), test_fraction=0)
    assert [found.train.samples[row] for row in range(4)] == frame["text"].tolist()
    assert found.train.class_names == ("gull", "wren")
    numbers = as_data_set((pandas.DataFrame(np.eye(4)), [0, 0, 1, 1]), test_fraction=0)
    assert numbers.train.samples[2].tolist() == [0, 0, 1, 0]
    with pytest.raises(TypeError, match="does not say which column is the sample"):
        as_data_set(frame)
