from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from nearkin import data
from nearkin.data import ImageArray, SampleSet
from nearkin.language import pseudo_class_names
from nearkin.networks.embedding import fitting_transform
from nearkin.networks.timm_models import import_timm, timm_preprocessing

SMALL = "test_efficientnet"  # timm's own smallest classifier of ImageNet


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A small classifier that has learnt nothing, and its weights in a file."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = import_timm().create_model(SMALL).eval()
        torch.nn.init.normal_(model.classifier.weight)
    file = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(model.state_dict(), file)
    return model, file


def pictures(*, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (7, 3, 40, 48), generator=generator, dtype=torch.uint8)
    return SampleSet(ImageArray(pixels), [number % classes for number in range(7)])


def label(images, file, cache, **keywords):
    return pseudo_class_names(images, classifier=f"timm:{SMALL}", weights=file, cache=cache, **keywords)


def test_the_names_are_those_of_the_highest_mean_probability(classifier, tmp_path):
    from timm.data import ImageNetInfo  # noqa: PLC0415

    model, file = classifier
    images = pictures()
    transform = fitting_transform(timm_preprocessing(model))
    expected = []
    for number in range(3):
        members = [index for index in range(7) if images.labels[index] == number]
        shares = []
        for index in members:
            with torch.no_grad():
                shares.append(model(transform(images.samples, [index], [0])).softmax(dim=1)[0].double())
        mean = sum(shares) / len(members)
        best = sorted(range(1000), key=lambda name: -mean[name])[:4]
        expected.append([ImageNetInfo().index_to_description(name).split(", ")[0] for name in best])
    seen = []
    found = label(
        images, file, tmp_path, names_per_class=4, batch_size=3, progress=lambda *done: seen.append(done)
    )
    assert found == expected
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_the_answer_is_kept_until_images_labels_or_weights_change(classifier, tmp_path):
    model, file = classifier

    def counted(images, file=file, **keywords):
        calls = []
        label(images, file, tmp_path / "cache", progress=lambda *_: calls.append(1), **keywords)
        return len(calls)

    assert counted(pictures()) == 1
    assert counted(pictures()) == 0
    assert counted(pictures(seed=1)) == 1
    assert counted(pictures(classes=2)) == 1
    assert counted(pictures(), names_per_class=2) == 1
    other = tmp_path / "other.safetensors"
    save_file(
        {name: value + (name == "classifier.bias") for name, value in model.state_dict().items()}, other
    )
    assert counted(pictures(), other) == 1
    for kept in (tmp_path / "cache").iterdir():
        kept.write_text("[[")
    assert counted(pictures()) == 1


def test_the_global_random_state_is_left_alone(classifier, tmp_path):
    before = torch.get_rng_state()
    label(pictures(), classifier[1], tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_arguments_are_named(classifier, tmp_path):
    _, file = classifier
    with pytest.raises(ValueError, match="timm has no model 'resnet5O': did you mean resnet50"):
        pseudo_class_names(pictures(), classifier="timm:resnet5O")
    with pytest.raises(ValueError, match="names_per_class=0 must lie between 1 and 1000"):
        label(pictures(), file, tmp_path, names_per_class=0)
    save_file({"stem": torch.ones(1)}, tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError, match=f"wrong.safetensors are not those of {SMALL}"):
        label(pictures(), tmp_path / "wrong.safetensors", tmp_path)


def test_birds_are_named_as_imagenet_names_them(shared, tmp_path):
    birds = data.build("cub200", shared / "datasets").train
    known = {
        "001.Black_footed_Albatross": "albatross",
        "014.Indigo_Bunting": "indigo bunting",
        "047.American_Goldfinch": "goldfinch",
        "067.Anna_Hummingbird": "hummingbird",
    }
    chosen = [
        index
        for bird in known
        for index in (birds.labels == birds.class_names.index(bird)).nonzero().flatten().tolist()[:4]
    ]
    found = pseudo_class_names(
        birds.select(chosen),
        classifier="timm:tf_efficientnet_lite0",
        weights=shared / "weights" / "tf_efficientnet_lite0.safetensors",
        cache=tmp_path,
    )
    assert [names[0] for names in found] == list(known.values())
    assert all(len(set(names)) == 5 for names in found)
