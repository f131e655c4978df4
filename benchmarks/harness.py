"""How every benchmark is run: on an idle machine, in fresh processes, the sides taking turns step by step.

A benchmark module declares its :class:`Benchmark` objects and hands them to :func:`main`:

    python benchmarks/losses.py                      # measure and write what this module measures
    python benchmarks/losses.py losses_b180          # one of them
    python benchmarks/losses.py --anyway             # on a loaded machine: print, never write
    python benchmarks/losses.py --small --anyway     # the smallest sizes, to see that it works

The load of the machine is looked at before, between, during and after the processes; where others use it,
nothing is written. ``benchmarks/all`` runs every benchmark.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import figures
from figures import FLOOR, OURS, Result, Row
from load import LoadedMachineError, Watch

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 3
REFUSED = 3
"""The exit code where the machine is loaded."""


@dataclass(frozen=True)
class Options:
    """What a benchmark may want to know; ``folder`` is shared by its processes and deleted after them."""

    small: bool = False
    shared: str = str(ROOT.parent / "shared")
    peer_python: str | None = None
    features: str | None = None
    folder: str = ""
    process: int = 0


@dataclass(frozen=True)
class Taken:
    """What one process measured of one row."""

    name: str
    samples: dict[str, list[float | None]]
    unit: str = "ms"
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """What is measured; ``measure`` runs in a fresh process, ``missing`` says why it cannot."""

    name: str
    title: str
    floor: str
    measure: Callable[[Options], Iterable[Taken]]
    note: str = ""
    threads: int | None = None
    packages: tuple[str, ...] = ("torch",)
    heavy: bool = False
    missing: Callable[[Options], str | None] = lambda _: None


class MeasuringError(RuntimeError):
    """A process of a benchmark failed."""


def take_turns(
    sides: dict[str, Callable[[], object]],
    *,
    rounds: int,
    budget: float = float("inf"),
    least: int = 3,
    seed: int = 0,
    scale: float = 1000.0,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float | None]]:
    """Let the sides take turns, in an order drawn anew each round, after one round to warm up.

    Goes on for ``rounds`` rounds or until ``budget`` seconds are spent, at least for ``least`` rounds. Each
    side finds what another left in the caches, as a loss does after a network's backward pass. A ``pause`` in
    seconds before each turn lets the threads of the side before it go to sleep: some wait for more work by
    keeping a processor busy.
    """
    order = random.Random(seed)
    taken: dict[str, list[float | None]] = {side: [] for side in sides}
    gc.collect()
    begin = clock()
    for done in range(rounds + 1):
        if done > least and clock() - begin >= budget:
            break
        for side in order.sample(list(sides), len(sides)):
            if pause:
                time.sleep(pause)
            start = clock()
            sides[side]()
            seconds = clock() - start
            if done:
                taken[side].append(scale * seconds)
    return taken


def merge(processes: Sequence[Sequence[Taken]]) -> tuple[Row, ...]:
    """Rows with a list of samples per process."""
    names = [[taken.name for taken in rows] for rows in processes]
    if any(found != names[0] for found in names):
        raise MeasuringError(f"the processes measured different rows: {names}")
    return tuple(
        Row(
            same[0].name,
            same[0].unit,
            {side: [[_short(x) for x in one.samples[side]] for one in same] for side in same[0].samples},
            same[0].note,
            same[0].facts,
        )
        for same in zip(*processes, strict=True)
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def measure(
    benchmark: Benchmark, source: str, options: Options, watch: Watch, processes: int = PROCESSES
) -> Result:
    """Measure in fresh processes; raises :class:`LoadedMachineError` as soon as others use the machine."""
    once = benchmark.name in figures.ONCE
    if not once and processes < PROCESSES and watch.refuse:
        raise ValueError(f"{processes} processes are too few for a figure with a range: take {PROCESSES}")
    processes = 1 if once else processes
    seen, taken = len(watch.loads), []
    about, code = conditions(benchmark), figures.digest(benchmark.name)
    watch.look(f"before {benchmark.name}")
    _say(f"{benchmark.name}: {processes} processes, one after the other")
    with tempfile.TemporaryDirectory() as folder:
        for process in range(processes):
            start = watch.read()
            asked = Options(**{**asdict(options), "folder": folder, "process": process})
            taken.append(in_fresh_process(benchmark, source, asked))
            load = watch.since(start, f"during process {process + 1} of {benchmark.name}")
            seconds = watch.read().clock - start.clock
            which = f"{benchmark.name}: process {process + 1} of {processes}"
            _say(f"{which}, {seconds:.0f} s, others used {load.share:.1%} of the machine")
            watch.look(f"after process {process + 1} of {benchmark.name}", 0.5)
    if (_git("rev-parse", "HEAD:src"), figures.digest(benchmark.name)) != (about["library"], code):
        raise MeasuringError(f"{benchmark.name}: the checkout changed while it was measured; measure again")
    return Result(
        benchmark.name,
        benchmark.title,
        benchmark.floor,
        benchmark.note,
        code,
        about,
        {
            "shares": [round(load.share, 4) for load in watch.loads[seen:]],
            "averages": [round(load.average, 2) for load in watch.loads[seen:]],
        },
        merge(taken),
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def in_fresh_process(benchmark: Benchmark, source: str, options: Options) -> list[Taken]:
    """One process's samples; it uses this checkout's nearkin and the benchmark's number of threads."""
    output = Path(options.folder) / "taken.json"
    command = [
        sys.executable,
        source,
        benchmark.name,
        "--child",
        json.dumps(asdict(options)),
        "--output",
        str(output),
    ]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = str(threads_of(benchmark))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        **{f"{library}_NUM_THREADS": threads for library in ("OMP", "MKL", "OPENBLAS")},
    }
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise MeasuringError(f"{benchmark.name} failed in its own process:\n{done.stderr.strip()}")
    return [Taken(**taken) for taken in json.loads(output.read_text(encoding="utf-8"))]


def threads_of(benchmark: Benchmark) -> int:
    """How many threads a benchmark's processes use."""
    return benchmark.threads or psutil.cpu_count() or 1


def conditions(benchmark: Benchmark) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "processor": processor(),
        "cores": psutil.cpu_count() or 1,
        "threads": threads_of(benchmark),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in benchmark.packages},
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": _git("rev-parse", "HEAD"),
        "library": _git("rev-parse", "HEAD:src"),
    }


def processor() -> str:
    """The model's name and, where the name is vague as on virtual machines, its family and model number."""
    found: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    if "model name" not in found:
        return platform.processor() or platform.machine()
    return f"{found['model name']} (family {found.get('cpu family')}, model {found.get('model')})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def uncommitted() -> str:
    """Changed files of the library and the benchmarks: a figure of these would trace to no commit."""
    return _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")


def already_made(benchmark: Benchmark, folder: Path = figures.RESULTS) -> bool:
    """Whether the same library, benchmark code, packages and machine have made this result."""
    result = figures.current(benchmark.name, folder)
    if result is None:
        return False
    now = conditions(benchmark)
    return all(result.conditions[key] == now[key] for key in ("processor", "cores", "library", "packages"))


def show(result: Result) -> None:
    """Print a result's table."""
    header, rows = figures.cells(result)
    table = Table(*header, title=result.title, caption=f"the floor: {result.floor}")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def run_all(
    benchmarks: Sequence[tuple[Benchmark, str]], arguments: argparse.Namespace, watch: Watch | None = None
) -> int:
    """Run benchmarks in order; write each result as soon as it is there, unless told only to look."""
    look_only = arguments.anyway or arguments.small
    watch = watch or Watch(refuse=not look_only)
    if not look_only and not _committed():
        return REFUSED
    if not look_only and arguments.processes < PROCESSES:
        _say(
            f"--processes {arguments.processes}: a figure needs at least {PROCESSES}; to look only: --anyway"
        )
        return REFUSED
    options = Options(
        small=arguments.small,
        peer_python=arguments.peer_python,
        features=arguments.features,
        **({"shared": arguments.shared} if arguments.shared else {}),
    )
    failed = 0
    for benchmark, source in benchmarks:
        reason = _reason_to_skip(benchmark, options, arguments, look_only)
        if reason:
            _say(f"{benchmark.name}: skipped, {reason}")
            continue
        try:
            result = measure(benchmark, source, options, watch, arguments.processes)
        except LoadedMachineError as refusal:
            _say(str(refusal))
            return REFUSED
        except MeasuringError as failure:
            _say(str(failure))
            failed = 1
            continue
        show(result)
        if not look_only:
            if not _committed():  # somebody worked here in the meantime
                return REFUSED
            _say("written: " + ", ".join(str(path.relative_to(ROOT)) for path in figures.save(result)))
    return failed


def _committed() -> bool:
    changed = uncommitted()
    if changed:
        _say(f"these files have uncommitted changes, and a figure must trace to a commit:\n{changed}")
    return not changed


def _reason_to_skip(
    benchmark: Benchmark, options: Options, arguments: argparse.Namespace, look_only: bool
) -> str | None:
    if benchmark.heavy and not (arguments.heavy or benchmark.name in arguments.names):
        return "it is heavy: --heavy"
    if not look_only and not arguments.again and already_made(benchmark):
        return "this machine has measured this code: --again"
    return benchmark.missing(options)


def parser(description: str) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="results to make; all if none is named")
    parser.add_argument("--anyway", action="store_true", help="on a loaded machine: print, never write")
    parser.add_argument("--small", action="store_true", help="smallest sizes; never written")
    parser.add_argument(
        "--again", action="store_true", help="also what this machine has measured of this code"
    )
    parser.add_argument("--heavy", action="store_true", help="also what takes long or much memory")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, help=f"at least {PROCESSES} to be written"
    )
    parser.add_argument("--shared", help="folder with datasets/ and weights/ (default: ../shared)")
    parser.add_argument("--peer-python", help="a Python that has metric-learn 0.7.0 and scikit-learn < 1.6")
    parser.add_argument("--features", help="npz with train (n, d) and train_labels (n,), for classical")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    return parser


def chosen(benchmarks: Sequence[Benchmark], names: Sequence[str]) -> list[Benchmark]:
    """Those of these names, or all."""
    known = {benchmark.name: benchmark for benchmark in benchmarks}
    for name in names:
        if name not in known:
            raise SystemExit(f"no benchmark {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names or known]


def main(benchmarks: Sequence[Benchmark], source: str, description: str) -> None:
    """A benchmark module's command: the parent that watches, or the child that measures."""
    arguments = parser(description).parse_args()
    selected = chosen(benchmarks, arguments.names)
    if arguments.child:
        (benchmark,) = selected
        taken = [asdict(one) for one in benchmark.measure(Options(**json.loads(arguments.child)))]
        Path(arguments.output).write_text(json.dumps(taken), encoding="utf-8")
        return
    sys.exit(run_all([(benchmark, source) for benchmark in selected], arguments))


__all__ = ["FLOOR", "OURS", "Benchmark", "Options", "Taken", "main", "take_turns"]
