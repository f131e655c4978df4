"""A trained CUB model in torch, onnxruntime and OpenVINO, float32 and int8, side by side in one process.

    NEARKIN_CUB_RUN=runs/cub python benchmarks/export.py       # a finished run on CUB
    python benchmarks/export.py --small --anyway               # pretrained weights and a random head will do

Every side embeds the same test images, already cut to the network's size. What a row says beside the times is
found out in the same run: the largest difference of a unit embedding's numbers from torch's on 500 test
images, Recall@1 on all test images, and megabytes of the file. OpenVINO takes part where it is installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import harness
import nearkin
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import data, networks
from nearkin.data import SampleSet, transforms
from nearkin.evaluation import retrieval_scores
from nearkin.model import Model
from nearkin.model.exporting.formats import registry
from nearkin.model.exporting.graph import GraphInput, UnitEmbeddings, graph_input
from nearkin.networks import Embedder

RUN = "NEARKIN_CUB_RUN"
TORCH = "torch"
COMPARED, BATCH = 500, 32
ALLOWED = 1e-4
NAMES = {
    ("onnx", "float32"): OURS,
    ("onnx", "int8"): "int8",
    ("openvino", "float32"): "openvino",
    ("openvino", "int8"): "openvino int8",
}

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Side:
    """One way to compute embeddings."""

    run: Run
    megabytes: float | None = None


def model_of(options: Options) -> Model:
    """The run's model; at the smallest size pretrained weights, where there is no run."""
    run = os.environ.get(RUN)
    if run:
        return nearkin.load(run)
    weights = Path(options.shared) / "weights" / "tf_efficientnet_lite0.safetensors"
    network = networks.build(
        "timm:tf_efficientnet_lite0", embedding_dim=512, pooling="avg+max", weights=weights
    ).eval()
    seen = transforms.build("resized_crop", network.preprocessing, train=False)
    return Model([Embedder(network, seen, seen, transform_spec={"name": "resized_crop"}, batch_size=BATCH)])


def formats() -> list[str]:
    return ["onnx", *(["openvino"] if find_spec("openvino") else [])]


def exported(model: Model, birds: data.DataSet, options: Options) -> dict[str, Side]:
    """Every file, written by the first process and opened by all."""
    sides: dict[str, Side] = {}
    for name in formats():
        home = Path(options.folder) / name
        told = home / "written.json"
        if not told.exists():
            # Differences are what is measured here: nothing is refused.
            written = model.export(
                home,
                format=name,
                int8=True,
                calibration=birds.train,
                samples=evenly(birds.require_test(), 8).samples,
                tolerance=2.0,
            )
            told.write_text(json.dumps([one.to_dict() for one in written]), encoding="utf-8")
        for one in json.loads(told.read_text(encoding="utf-8")):
            run = registry.build(name).open(Path(one["file"]))
            sides[NAMES[name, one["precision"]]] = Side(by_file(run), one["bytes"] / 1e6)
    return sides


def by_file(run: Callable[..., object]) -> Run:
    return lambda pixels: torch.from_numpy(run(pixels.numpy()))


def evenly(samples: SampleSet, count: int) -> SampleSet:
    return samples.select(torch.linspace(0, len(samples) - 1, min(count, len(samples))).round().long())


def embeddings(run: Run, taken: GraphInput, samples: SampleSet) -> Tensor:
    indices = range(len(samples))
    parts = (indices[start : start + BATCH] for start in range(0, len(samples), BATCH))
    return torch.cat([run(taken.read(samples.samples, part)) for part in parts])


def found_out(
    sides: dict[str, Side], taken: GraphInput, test: SampleSet, options: Options
) -> dict[str, dict[str, float]]:
    """Difference, Recall@1 and size of every side, by the first process."""
    if options.process:
        return {}
    compared = torch.linspace(0, len(test) - 1, min(COMPARED, len(test))).round().long()
    rows = {name: embeddings(side.run, taken, test) for name, side in sides.items()}
    facts = {
        name: {
            "largest difference": float((rows[name][compared] - rows[TORCH][compared]).abs().max()),
            "recall at 1": retrieval_scores(rows[name], test.labels, recall_at=(1,)).recall_at[1],
            **({} if sides[name].megabytes is None else {"megabytes": sides[name].megabytes}),
        }
        for name in sides
    }
    for name in ({OURS, "openvino"} & set(facts)) if not options.small else ():
        if facts[name]["largest difference"] > ALLOWED:
            raise SystemExit(f"{name} differs from torch by {facts[name]['largest difference']:.2g}")
        if round(100 * (facts[name]["recall at 1"] - facts[TORCH]["recall at 1"]), 2):
            raise SystemExit(
                f"{name}: Recall@1 {facts[name]['recall at 1']}, torch {facts[TORCH]['recall at 1']}"
            )
    return facts


def in_words(facts: dict[str, dict[str, float]]) -> str:
    told = []
    for name, known in facts.items():
        size = f"{known['megabytes']:.1f} MB, " if "megabytes" in known else ""
        difference = "" if name == TORCH else f", difference {known['largest difference']:.1e}"
        word = "onnx" if name == OURS else name
        told.append(f"{word}: {size}Recall@1 {100 * known['recall at 1']:.2f} %{difference}")
    return "; ".join(told)


def product_of_as_many_multiplications(graph: UnitEmbeddings, image: Tensor) -> Callable[[], Tensor]:
    """A square matrix product with the multiplications of one image, for the floor."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        graph(image)
    side = round((counter.get_total_flops() / 2) ** (1 / 3))
    left, right = torch.randn(side, side), torch.randn(side, side)
    return lambda: left @ right


def repeated(floor: Callable[[], Tensor], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            floor()

    return run


@torch.inference_mode()
def measure(options: Options) -> Iterator[Taken]:
    """One image at a time, and a batch; milliseconds per image."""
    model = model_of(options)
    birds = data.build("cub200", root=Path(options.shared) / "datasets")
    test = birds.require_test()
    if options.small:
        test = test.select(range(12))
    taken, graph = graph_input(model), UnitEmbeddings(model, pixels=True)
    with torch.inference_mode(mode=False):  # torch.export wants to see how tensors change
        sides = {TORCH: Side(graph), **exported(model, birds, options)}
    facts = found_out(sides, taken, test, options)
    some = taken.read(test.samples, range(min(BATCH, len(test))))
    floor = product_of_as_many_multiplications(graph, some[:1])
    for count in (1, len(some)):
        ways: dict[str, Callable[[], object]] = {FLOOR: repeated(floor, count)}
        ways |= {name: lambda side=side, count=count: side.run(some[:count]) for name, side in sides.items()}
        rounds = 2 if options.small else 60 if count == 1 else 10
        times = harness.take_turns(ways, rounds=rounds, budget=60, seed=options.process, scale=1000 / count)
        words = "one image at a time" if count == 1 else f"{count} images at a time"
        yield Taken(words, times, "ms per image", in_words(facts), dict(facts))


def missing(options: Options) -> str | None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            return f"it needs {package}: pip install 'nearkin[export]'"
    needed = [Path(options.shared) / "datasets" / "CUB_200_2011", Path(options.shared) / "weights"]
    if not all(path.exists() for path in needed):
        return "it needs ../shared: datasets, weights (--shared)"
    if not options.small and not os.environ.get(RUN):
        return f"it needs a finished run on CUB: {RUN}=runs/cub"
    return None


BENCHMARKS = [
    Benchmark(
        "export",
        "A CUB model in other runtimes (ours: ONNX in onnxruntime, float32)",
        "a matrix product of as many multiplications",
        measure,
        packages=("torch", "timm", "onnx", "onnxruntime", "openvino"),
        missing=missing,
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
