"""The losses of two commits beside each other: is a step slower than it was?

    python benchmarks/loss_versions.py 15b19f3                  # against the present checkout, B 180
    python benchmarks/loss_versions.py 15b19f3 --case b1024 --rounds 9
    python benchmarks/loss_versions.py 15b19f3 --operations     # counts, which no load changes

The other commit is checked out into a temporary folder. The two take turns, each time in a fresh process; of
every loss the least time of a process counts, and of the ratios new ÷ old the median over the rounds. Times
are refused on a loaded machine (``--anyway`` to insist). Nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from math import exp, log
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = {"b180": (36, 5, 100), "b1024": (256, 4, 1000), "sop": (36, 5, 11_318)}
"""Classes in a batch, samples of each, classes in all: those of ``losses.py``."""
DIM = 512
STEPS = 60
NAMES = [
    "arcface",
    "contrastive",
    "direction_multi_similarity",
    "direction_proxy_nca",
    "direction_triplet",
    "lifted_structure",
    "margin",
    "multi_similarity",
    "nca",
    "npair",
    "proxy_anchor",
    "proxy_gml",
    "proxy_nca",
    "proxy_nca_pp",
    "proxy_repulsion",
    "soft_triple",
    "softmax",
    "triplet",
]
"""The losses that both editions have."""


def steps(case: str, names: list[str]) -> dict[str, Callable[[], object]]:
    """A step of each loss: forward and backward, mining included. Imports the nearkin of this process."""
    import torch  # noqa: PLC0415

    from nearkin import losses  # noqa: PLC0415

    classes, per_class, num_classes = CASES[case]
    generator = torch.Generator().manual_seed(0)
    labels = torch.randperm(num_classes, generator=generator)[:classes].repeat_interleave(per_class)
    centres = torch.randn(num_classes, DIM, generator=generator)
    embeddings = centres[labels] + 2 * torch.randn(len(labels), DIM, generator=generator)

    def step_of(name: str) -> Callable[[], object]:
        loss = losses.build(name, num_classes=num_classes, embedding_dim=DIM)
        x = embeddings.clone().requires_grad_()
        learnt = [x, *loss.parameters()]
        return lambda: torch.autograd.grad(loss(x, labels), learnt)

    return {name: step_of(name) for name in names}


def measure(case: str, names: list[str], operations: bool) -> dict[str, float]:
    """Seconds of the quickest step of each loss, or how many operations a step calls."""
    found = {}
    for name, step in steps(case, names).items():
        for _ in range(5):
            step()
        found[name] = _operations(step) if operations else min(_seconds(step) for _ in range(STEPS))
    return found


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _operations(step: Callable[[], object]) -> float:
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return sum(event.count for event in profiler.key_averages() if event.key.startswith("aten::"))


def in_fresh_process(source: Path, options: argparse.Namespace) -> dict[str, float]:
    """The same with the nearkin of a checkout, in a process of its own."""
    command = [sys.executable, __file__, "--child", "--case", options.case, "--losses", *options.losses]
    command += ["--operations"] if options.operations else []
    environment = os.environ | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, cwd=source, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(old: Path, options: argparse.Namespace) -> None:
    """Print new ÷ old of every loss, and their geometric mean."""
    rounds = 1 if options.operations else options.rounds
    taken: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(rounds):
        sides = [old, ROOT] if number % 2 == 0 else [ROOT, old]
        found = {source: in_fresh_process(source, options) for source in sides}
        taken.append((found[old], found[ROOT]))
    unit = 1 if options.operations else 1e-3
    print(f"{'loss':28}{'old':>10}{'new':>10}{'new ÷ old':>12}   range")
    ratios = {}
    for name in options.losses:
        of_rounds = [new[name] / before[name] for before, new in taken]
        ratios[name] = statistics.median(of_rounds)
        before, new = (
            statistics.median(side[name] for side in sides) / unit for sides in zip(*taken, strict=True)
        )
        spread = f"{min(of_rounds):.3f}–{max(of_rounds):.3f}"
        print(f"{name:28}{before:10.3f}{new:10.3f}{ratios[name]:12.3f}   {spread}")
    mean = exp(statistics.fmean(map(log, ratios.values())))
    print(f"geometric mean {mean:.3f} ({'operations' if options.operations else 'milliseconds'} above)")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the commit to compare the present checkout with")
    parser.add_argument("--case", choices=sorted(CASES), default="b180")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--losses", nargs="+", default=NAMES)
    parser.add_argument("--operations", action="store_true", help="count operations instead of seconds")
    parser.add_argument("--anyway", action="store_true", help="measure on a loaded machine, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.commit is None and not options.child:
        parser.error("name the commit to compare with")
    return options


def main() -> None:
    options = parsed()
    if options.child:
        print(json.dumps(measure(options.case, options.losses, options.operations)))
        return
    if not options.operations:
        from load import Watch  # noqa: PLC0415

        Watch(refuse=not options.anyway).look("before")
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(old), options.commit], check=True)
        try:
            compare(old, options)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)


if __name__ == "__main__":
    main()
