"""Images and texts: species of CUB200-2011 that no network has learnt, found by their names.

    python benchmarks/modalities.py --root DATASETS --weights tf_efficientnet_lite0.safetensors
    python benchmarks/modalities.py --page docs/results/modalities.md   # from what is there

Two heads learn on the first hundred species: one on the pooled features of a network pretrained on ImageNet,
one on MiniLM's embeddings of the species' name and of sentences made from it. The other hundred are searched
for, by text among all their images and by image among all their texts, for several losses and seeds; ridge
regression between the frozen features stands beside. Features are computed once and finished runs are read,
so that it goes on where it was stopped. Everything lies below ``--folder``.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nearkin
from nearkin import data, networks
from nearkin.atomic import atomic_path, write_json, write_text
from nearkin.data import DataSet, SampleSet, TwoModalities, Vectors
from nearkin.language import spoken_class_names, text_encoder
from nearkin.networks import TwoTowers
from nearkin.training import Run

LOSSES = ("info_nce", "multi_similarity", "contrastive", "triplet", "supcon", "proxy_anchor")
SEEDS = (0, 1, 2)
NETWORK = "timm:tf_efficientnet_lite0"
EMBEDDING_DIM = 256
DIRECTIONS = ("text_to_image", "image_to_text")
PARTS = {
    "backed": "back",
    "bellied": "belly",
    "billed": "bill",
    "breasted": "breast",
    "capped": "cap",
    "collared": "collar",
    "crested": "crest",
    "crowned": "crown",
    "eared": "ears",
    "eyed": "eyes",
    "faced": "face",
    "footed": "feet",
    "headed": "head",
    "legged": "legs",
    "necked": "neck",
    "rumped": "rump",
    "sided": "sides",
    "tailed": "tail",
    "throated": "throat",
    "winged": "wings",
}
"""Parts of a bird, by the word that names of species have for them."""


def sentences(name: str) -> list[str]:
    """The name of a species in sentences, one of them about what the name says of its look.

    >>> sentences("Black footed Albatross")[-1]
    'an albatross with black feet'
    """
    words = re.sub(r"[^a-z ]", "", name.lower()).split()
    kind, rest = words[-1], words[:-1]
    told = [f"a photo of a {' '.join(words)}", f"the {' '.join(words)}, a species of bird"]
    part = next((word for word in rest if word in PARTS), None)
    quality = " ".join(rest[: rest.index(part)]) if part else ""
    if part and quality:
        told.append(f"{_article(kind)} {kind} with {_with(quality, PARTS[part])}")
    elif rest:
        told.append(f"{_article(kind)} {kind}, and more exactly {_article(rest[0])} {' '.join(rest)} one")
    return told


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _with(quality: str, part: str) -> str:
    return (
        f"{quality} {part}"
        if part.endswith("s") or part == "feet"
        else f"{_article(quality)} {quality} {part}"
    )


def texts_of(class_names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Sentences about all classes, and the class of each; what is true of two classes is left out."""
    said = [(text, number) for number, name in enumerate(class_names) for text in sentences(name)]
    classes: dict[str, set[int]] = defaultdict(set)
    for text, number in said:
        classes[text].add(number)
    kept = [(text, number) for text, number in said if len(classes[text]) == 1]
    return [text for text, _ in kept], [number for _, number in kept]


def image_features(samples: SampleSet, weights: Path, file: Path) -> np.ndarray:
    """Pooled features ``(N, F)`` of images, computed once."""
    if not file.exists():
        network = networks.build(NETWORK, embedding_dim=2, weights=weights)

        def told(done: int, count: int) -> None:
            if done % 1024 < 64:
                print(f"{file.name}: {done:,} of {count:,} images", flush=True)

        rows = networks.embed(network, samples, what="features", progress=told)
        with atomic_path(file) as temporary, temporary.open("wb") as opened:
            np.save(opened, rows.numpy())
    return np.load(file)


def paired(
    images: np.ndarray, labels: Tensor, texts: Tensor, text_classes: Sequence[int], names: Sequence[str]
) -> SampleSet:
    """Every image with one of the texts of its class, one after the other."""
    of_class = defaultdict(list)
    for place, number in enumerate(text_classes):
        of_class[number].append(place)
    seen: dict[int, int] = defaultdict(int)
    rows = []
    for image, label in enumerate(labels.tolist()):
        own = of_class[label]
        rows.append((image, own[seen[label] % len(own)]))
        seen[label] += 1
    both = TwoModalities(Vectors(images), Vectors(texts), torch.tensor(rows))
    return SampleSet(both, labels, names)


def cub(root: Path, weights: Path, folder: Path) -> DataSet:
    """CUB's hundred species to learn from and the hundred others, each as features of images and of texts."""
    birds = data.build("cub200", root)
    encode = text_encoder("minilm")
    splits = {}
    for part, samples in (("train", birds.train), ("test", birds.require_test())):
        images = image_features(samples, weights, folder / f"{part}_images.npy")
        told, classes = texts_of(spoken_class_names("cub200", samples.class_names))
        splits[part] = paired(images, samples.labels, encode(told), classes, samples.class_names)
    return DataSet("cub200_names", **splits)


def towers(given: DataSet, seed: int) -> TwoTowers:
    """A linear head for each."""
    samples = given.train.samples
    assert isinstance(samples, TwoModalities)
    torch.manual_seed(seed)
    widths = (len(side[0]) for side in (samples.first, samples.second))
    return TwoTowers(*(nn.Linear(width, EMBEDDING_DIM) for width in widths))


def carry_out(
    given: DataSet, folder: Path, losses: Sequence[str], seeds: Sequence[int], epochs: int
) -> list[Run]:
    """A run for every loss and seed; those that are finished are read."""
    return [
        nearkin.train(
            given,
            network=towers(given, seed),
            loss=loss,
            protocol={"name": "retrained"},
            epochs=epochs,
            batch_size=128,
            lr=1e-3,
            seed=seed,
            output=folder / "runs" / f"{loss}-{seed}",
        )
        for loss in losses
        for seed in seeds
    ]


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """What was found, in plain values."""
    rows = []
    for run in runs:
        result = run.result
        assert result.start is not None
        found = {name: one.to_dict() for name, one in result.directions.items()}
        beside = {name: one.to_dict() for name, one in result.start.directions.items()}
        loss, seed = run.path.name.rsplit("-", 1)
        rows.append({"loss": loss, "seed": int(seed), "epoch": result.epoch, "test": found, "ridge": beside})
    data_summary = runs[0].result.data
    assert data_summary is not None
    assert data_summary.test is not None
    return {"classes": data_summary.test.classes, "runs": rows}


def table(found: dict[str, Any]) -> list[str]:
    """Mean and deviation over seeds of Recall@1 and @8, in per cent."""
    titles = [f"{name.replace('_', ' ')}, R@{k}" for name in DIRECTIONS for k in (1, 8)]
    lines = [f"| | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
    contenders = {loss: [row["test"] for row in found["runs"] if row["loss"] == loss] for loss in
                  dict.fromkeys(row["loss"] for row in found["runs"])}  # fmt: skip
    contenders["ridge regression between frozen features"] = [row["ridge"] for row in found["runs"][:1]]
    for name, results in contenders.items():
        cells = [_cell([one[way][f"recall_at_{k}"] for one in results]) for way in DIRECTIONS for k in (1, 8)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    chance = 100 / found["classes"]
    return [*lines, f"| chance, R@1 | {chance:.2f} | | {chance:.2f} | |"]


def _cell(values: Sequence[float]) -> str:
    mean = f"{100 * statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.2f}"


def page(found: dict[str, Any]) -> str:
    """What was found, for people."""
    seeds = sorted({row["seed"] for row in found["runs"]})
    lines = [
        "# Two modalities: birds by their names",
        "",
        f"CUB200-2011: heads on frozen features of {NETWORK.removeprefix('timm:')} and of MiniLM learn on",
        f"the first hundred species; the {found['classes']} others are searched for by sentences made from",
        f"their names. Mean ± deviation over seeds {', '.join(map(str, seeds))}, in per cent. Made by",
        "`benchmarks/modalities.py`.",
        "",
        *table(found),
    ]
    return "\n".join(lines) + "\n"


def parsed(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, help="the folder that holds CUB_200_2011")
    parser.add_argument("--weights", type=Path, help=f"of {NETWORK.removeprefix('timm:')}")
    parser.add_argument("--folder", type=Path, default=Path("studies/modalities"))
    parser.add_argument("--losses", nargs="+", default=list(LOSSES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--page", type=Path, help="write the page of what is there")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    if options.root is not None:
        given = cub(options.root, options.weights, options.folder)
        runs = carry_out(given, options.folder, options.losses, options.seeds, options.epochs)
        write_json(options.folder / "result.json", summary(runs))
    homes = sorted((options.folder / "runs").glob("*/result.json"))
    runs = [Run.existing(home.parent) for home in homes]
    found = summary(
        [run for loss in options.losses for run in runs if run.path.name.rsplit("-", 1)[0] == loss]
    )
    print("\n".join(table(found)))
    if options.page is not None:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.page, page(found))


if __name__ == "__main__":
    main()
