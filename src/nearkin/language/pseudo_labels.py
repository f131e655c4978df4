"""Names for classes that have none: what an ImageNet classifier sees in their images."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_dir
from torch import Tensor, nn

from nearkin.atomic import write_json
from nearkin.data.loading import Loader, loader
from nearkin.data.sample_hashes import fingerprint
from nearkin.data.samples import SampleSet
from nearkin.data.transforms import Transform
from nearkin.networks.embedding import Progress, fitting_transform
from nearkin.networks.splitting import device_of
from nearkin.networks.timm_models import PREFIX, import_timm, timm_preprocessing
from nearkin.networks.weights import add_weights, read_state
from nearkin.registry import nearest_name

_FORMAT = 1


def pseudo_class_names(
    image_set: SampleSet,
    *,
    classifier: str = "timm:resnet50",
    weights: str | os.PathLike[str] = "imagenet",
    names_per_class: int = 5,
    cache: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> list[list[str]]:
    """The ImageNet names that fit the images of each class best, the best first; C lists of K names.

    A classifier's probabilities are averaged over all images of a class. For
    :class:`nearkin.losses.LanguageGuidance`, which compares the names of two classes rank by rank (Roth,
    Vinyals and Akata 2022, CVPR). They are computed once, and kept under a hash of weights and images.

    Args:
        image_set: The images and their classes.
        classifier: A timm model with an ImageNet classifier, as ``timm:NAME``.
        weights: ``"imagenet"`` downloads them; a path loads a ``.safetensors`` or PyTorch file, which must
            hold the classifier as well.
        names_per_class: K.
        cache: Where answers are kept; by default in the user's cache folder.
        device: Where the classifier runs.
        batch_size: Images at a time.
        workers: Processes that decode.
        progress: Called after every batch with the images done and the number of all.
    """
    with torch.random.fork_rng(devices=[]):
        model = _classifier(classifier.removeprefix(PREFIX), weights).to(device).eval()
    names = _imagenet_names(model)
    if not 1 <= names_per_class <= len(names):
        raise ValueError(f"names_per_class={names_per_class} must lie between 1 and {len(names)}")
    transform = fitting_transform(timm_preprocessing(model))
    folder = Path(user_cache_dir("nearkin")) / "pseudo_labels" if cache is None else Path(cache)
    file = folder / f"{_key(model, transform, image_set, names_per_class)}.json"
    labels = _read(file)
    if labels is None:
        batches = loader(image_set, transform, batch_size=batch_size, workers=workers)
        sums = torch.zeros(image_set.num_classes, len(names), dtype=torch.float64)
        for done in _add_probabilities(sums, model, batches):
            if progress is not None:
                progress(done, len(image_set))
        means = sums / image_set.labels.bincount().unsqueeze(1)
        best = means.argsort(dim=1, descending=True, stable=True)[:, :names_per_class]
        labels = [[names[number] for number in numbers] for numbers in best.tolist()]
        write_json(file, labels)
    return labels


def _classifier(name: str, weights: str | os.PathLike[str]) -> nn.Module:
    timm = import_timm()
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}: {nearest_name(name, timm.list_models())}")
    if weights != "imagenet":
        model: nn.Module = timm.create_model(name)
        try:
            model.load_state_dict(read_state(weights))
        except RuntimeError as error:
            raise ValueError(f"the weights in {weights} are not those of {name}: {error}") from None
        return model
    try:
        model = timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever the library below says about a connection, a disk or a checksum
        raise ConnectionError(
            f"could not download the ImageNet weights of {name} ({error}). Download them elsewhere and give "
            "their path"
        ) from error
    return model


def _imagenet_names(model: nn.Module) -> list[str]:
    """What the outputs of a classifier are called: of several words for a class, the first."""
    import_timm()
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset  # noqa: PLC0415

    subset = infer_imagenet_subset(model)
    if subset is None:
        raise ValueError(f"{type(model).__name__} is no classifier of ImageNet: its outputs have no names")
    info: Any = ImageNetInfo(subset)
    return [info.index_to_description(number).split(",")[0] for number in range(info.num_classes())]


def _add_probabilities(sums: Tensor, model: nn.Module, batches: Loader) -> Iterator[int]:
    """Add the softmax of every image to the row of its class, in place; gives the number of images done."""
    done = 0
    for images, labels, _ in batches:
        with torch.inference_mode():
            probabilities = model(images.to(device_of(model))).softmax(dim=1)
        sums.index_add_(0, labels, probabilities.cpu().double())
        done += len(labels)
        yield done


def _key(model: nn.Module, transform: Transform, image_set: SampleSet, names_per_class: int) -> str:
    images = fingerprint(image_set.samples)
    digest = hashlib.sha256(f"{_FORMAT} {transform!r} {images} {names_per_class}".encode())
    digest.update(image_set.labels.numpy().data)
    add_weights(digest, model)
    return digest.hexdigest()[:32]


def _read(file: Path) -> list[list[str]] | None:
    """The names in a file, or ``None`` where there is none or it cannot be read."""
    try:
        labels: list[list[str]] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return labels
