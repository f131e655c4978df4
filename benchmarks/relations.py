"""What ``relations=`` and a memory do for ``proxy_repulsion``, on validation classes of ``glyphs``.

``python benchmarks/relations.py`` trains every variant with three seeds on equal balanced batches and prints
Recall@1 and MAP@R of the selected epoch on the validation classes. No test score is read. A study, no timing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import nearkin

VARIANTS: dict[str, dict[str, Any]] = {
    "relations 0": {},
    "relations 0.25": {"relations": 0.25},
    "relations 0.5": {"relations": 0.5},
    "relations 1": {"relations": 1.0},
    "relations 0, memory": {"memory": {"size": 400, "warmup_steps": 40}},
}
SEEDS = (0, 1, 2)


def validation_scores(loss: dict[str, Any], seed: int, epochs: int, folder: Path) -> tuple[float, float]:
    run = nearkin.train(
        {"name": "glyphs", "num_classes": 200, "images_per_class": 12, "size": 20, "seed": seed},
        network={"name": "convnet", "size": 20, "width": 16, "embedding_dim": 64},
        loss={"name": "proxy_repulsion", "lr": 0.1, **loss},
        sampler={"name": "balanced", "batch_size": 60, "images_per_class": 4},
        protocol={"name": "fixed_validation", "validation_share": 0.4},
        epochs=epochs,
        seed=seed,
        output=folder,
        progress=False,
    )
    found = run.result.networks[0].validation
    return found.recall_at[1], found.map_at_r


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    print("| variant | " + " | ".join(f"Recall@1, seed {seed}" for seed in SEEDS) + " | mean | MAP@R |")
    print("|---|" + "---:|" * (len(SEEDS) + 2))
    with tempfile.TemporaryDirectory() as folder:
        for name, loss in VARIANTS.items():
            runs = [
                validation_scores(loss, seed, arguments.epochs, Path(folder) / f"{name}-{seed}")
                for seed in SEEDS
            ]
            recalls, precisions = zip(*runs, strict=True)
            cells = [*recalls, statistics.mean(recalls), statistics.mean(precisions)]
            print(f"| {name} | " + " | ".join(f"{100 * cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
