"""The threshold on real classes: chosen on some of CUB's training classes, counted on its test classes.

The network is not trained here: features of pretrained weights, so that all training classes can play the
validation classes, in many draws. Prints how far the false-accept rate on the test classes lies from the
wanted one, and in how many draws it lies inside the stated interval. Then the same with classes that are
drawn at random from all, as the interval supposes: CUB's second hundred are other kinds of birds.

    python benchmarks/threshold.py CUB_200_2011 tf_efficientnet_lite0.safetensors
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import Tensor

from nearkin import data, networks
from nearkin.data import SampleSet
from nearkin.evaluation import choose_threshold
from nearkin.evaluation.inputs import unit_rows
from nearkin.networks import embed


def false_accepts(units: Tensor, labels: Tensor, similarity: float, rows: int = 1024) -> float:
    """Share of the pairs of different classes whose cosine reaches the threshold."""
    accepted = pairs = 0
    for start in range(0, len(units), rows):
        different = labels[start : start + rows, None] != labels
        accepted += int(((units[start : start + rows] @ units.T >= similarity) & different).sum())
        pairs += int(different.sum())
    return accepted / pairs


def some(samples: SampleSet, per_class: int | None) -> SampleSet:
    """At most so many samples of every class."""
    if per_class is None:
        return samples
    places = [
        (samples.labels == label).nonzero().flatten()[:per_class] for label in range(samples.num_classes)
    ]
    return samples.select(torch.cat(places))


def features(network: networks.Network, samples: SampleSet, name: str) -> Tensor:
    def told(done: int, total: int) -> None:
        print(f"\r{name}: {done:,} of {total:,}", end="" if done < total else "\n", flush=True)

    return embed(network, samples, what="features", progress=told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", help="the folder CUB_200_2011")
    parser.add_argument("weights", help="of tf_efficientnet_lite0")
    parser.add_argument("--classes", type=int, nargs="+", default=[15, 30, 100], help="that choose")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--per-class", type=int, help="at most so many images of a class")
    parser.add_argument("--rate", type=float, default=0.01)
    asked = parser.parse_args()
    birds = data.build("cub200", asked.root)
    network = networks.build("timm:tf_efficientnet_lite0", weights=asked.weights, embedding_dim=64).eval()
    train, test = some(birds.train, asked.per_class), some(birds.test, asked.per_class)
    rows = torch.cat([features(network, train, "training classes"), features(network, test, "test classes")])
    labels = torch.cat([train.labels, test.labels + train.num_classes])
    print("| classes | draws | wanted % | on others, mean % | lowest to highest % | inside its interval |")
    print("|---|---:|---:|---:|---:|---:|")
    first, second = range(train.num_classes), range(train.num_classes, train.num_classes + test.num_classes)
    for count in asked.classes:
        draws = range(asked.draws if count < len(first) else 1)
        splits = [(_drawn(first, seed)[:count], list(second)) for seed in draws]
        _print_row(f"{count} training classes", rows, labels, splits, asked.rate)
    for count in asked.classes:
        orders = [_drawn(range(second.stop), seed) for seed in range(asked.draws)]
        splits = [(order[:count], order[count : count + len(second)]) for order in orders]
        _print_row(f"{count} of all, at random", rows, labels, splits, asked.rate)


def _drawn(classes: range, seed: int) -> list[int]:
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    return [classes[place] for place in order.tolist()]


def _print_row(
    what: str, rows: Tensor, labels: Tensor, splits: list[tuple[list[int], list[int]]], rate: float
) -> None:
    """Choose on some classes and count on others, for every split."""
    found, inside = [], 0
    for seed, (choosing, counted) in enumerate(splits):
        own, other = (torch.isin(labels, torch.tensor(classes)) for classes in (choosing, counted))
        threshold = choose_threshold(rows[own], labels[own], false_accept_rate=rate, seed=seed)
        found.append(false_accepts(unit_rows(rows[other]), labels[other], threshold.similarity))
        inside += threshold.false_accept_rate.low <= found[-1] <= threshold.false_accept_rate.high
    print(
        f"| {what} | {len(found)} | {100 * rate:.2f} | {100 * statistics.fmean(found):.2f} | "
        f"{100 * min(found):.2f} to {100 * max(found):.2f} | {inside} of {len(found)} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
