"""The threshold on real classes: chosen on some of CUB's training classes, counted on its test classes.

The network is not trained here: features of pretrained weights, so that all training classes can play the
validation classes, in many draws. Prints how far the false-accept rate on the test classes lies from the
wanted one, and in how many draws it lies inside the stated interval.

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
    known = features(network, train, "training classes")
    units = unit_rows(features(network, test, "test classes"))
    print(
        "| classes | draws | wanted % | on test classes, mean % | lowest to highest % | inside its interval |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for count in asked.classes:
        found, inside = [], 0
        for seed in range(asked.draws if count < train.num_classes else 1):
            order = torch.randperm(train.num_classes, generator=torch.Generator().manual_seed(seed))
            chosen = torch.isin(train.labels, order[:count])
            threshold = choose_threshold(
                known[chosen], train.labels[chosen], false_accept_rate=asked.rate, seed=seed
            )
            found.append(false_accepts(units, test.labels, threshold.similarity))
            inside += threshold.false_accept_rate.low <= found[-1] <= threshold.false_accept_rate.high
        print(
            f"| {count} | {len(found)} | {100 * asked.rate:.2f} | {100 * statistics.fmean(found):.2f} | "
            f"{100 * min(found):.2f} to {100 * max(found):.2f} | {inside} of {len(found)} |"
        )


if __name__ == "__main__":
    main()
