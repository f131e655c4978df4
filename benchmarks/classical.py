"""Our classical learners beside metric-learn's and scikit-learn's: objective reached, time, memory.

metric-learn 0.7.0 does not run on today's scikit-learn, so it gets a virtual environment of its own (made in
a temporary folder, or given with ``--peer-python``) and learns there, in a process of its own, from the same
arrays. One function computes the objective of both results. ITML gets the same pairs and bounds either side.

    python benchmarks/classical.py                                # digits
    python benchmarks/classical.py --heavy --features cub.npz     # iris, wine, and features of one's own, too

``--features`` takes an npz file with ``train (n, d)`` and ``train_labels (n,)``; it becomes the data sets
``features`` (2,000 rows, the first classes, PCA to 64 dimensions) and ``features, all`` (all rows, ours
alone). The floor is one matrix of all squared distances: a learner that looks at all of them once cannot do
without.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import classical
from nearkin.classical.constraints import default_pair_count, distance_bounds, random_pairs

METHODS = ("lmnn", "nca", "mcml", "itml", "rca", "lfda")
WITH_OBJECTIVE = ("lmnn", "nca", "mcml", "itml")
IN_PEER = ("lmnn", "nca", "itml", "rca", "lfda")  # metric-learn has no MCML
PEER, SKLEARN = "metric-learn", "scikit-learn"
PEER_REQUIREMENTS = ("metric-learn==0.7.0", "scikit-learn<1.6")

# Run by the peer's Python: no nearkin there.
PEER_PROGRAM = """
import json, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
import metric_learn
from sklearn.neighbors import NeighborhoodComponentsAnalysis
data = np.load(sys.argv[1])
method, X, y = sys.argv[2], data["X"], data["y"]
def peak_kb():  # of this program alone; ru_maxrss would start from the parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak_kb()
if method == "lmnn":
    learner = metric_learn.LMNN(n_neighbors=3, init="identity")
elif method == "nca":
    learner = metric_learn.NCA(init="identity", max_iter=100)
elif method == "nca_sklearn":
    learner = NeighborhoodComponentsAnalysis(init="identity", max_iter=100)
elif method == "itml":
    learner = metric_learn.ITML()
elif method == "rca":
    learner = metric_learn.RCA()
else:
    learner = metric_learn.LFDA()
start = time.perf_counter()
try:
    if method == "itml":
        learner.fit(data["X"][data["pairs"]], np.where(data["similar"], 1, -1), bounds=data["bounds"])
    else:
        learner.fit(X, y)
    components, error = learner.components_, ""
    if not np.isfinite(components).all():
        components, error = np.zeros((0, 0)), "result is not finite"
except Exception as problem:
    components, error = np.zeros((0, 0)), f"{type(problem).__name__}: {problem}"
seconds = time.perf_counter() - start
peak = peak_kb() - before
np.save(sys.argv[3], np.real(components))
print(json.dumps({"seconds": seconds, "peak_mb": peak / 1024, "error": error[:60]}))
"""


def toy(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = {"iris": load_iris, "wine": load_wine, "digits": load_digits}[name](return_X_y=True)
    # Many distances are equal here; a touch of noise gives both sides the same nearest neighbours.
    X = X + 1e-5 * X.std(axis=0) * np.random.default_rng(0).normal(size=X.shape)
    return (StandardScaler().fit_transform(X) if name == "wine" else X), y


def of_features(path: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    stored = np.load(path)
    y = np.unique(stored["train_labels"], return_inverse=True)[1]
    reduced = PCA(64, svd_solver="full").fit_transform(stored["train"].astype(np.float64))
    first = np.argsort(y, kind="stable")[:2000]
    return {"features": (reduced[first], y[first]), "features, all": (reduced, y)}


def pairs_for(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Pairs and bounds that both sides get."""
    pairs, similar = random_pairs(y, min(2000, default_pair_count(y)), np.random.RandomState(0))
    return {"pairs": pairs, "similar": similar, "bounds": np.array(distance_bounds(X, pairs))}


def objective(
    method: str, G: np.ndarray, X: np.ndarray, y: np.ndarray, extra: dict[str, np.ndarray]
) -> float:
    """What a map reaches, the lower the better: the same few lines for both sides."""
    Z = (X - X.mean(axis=0)) @ G.T
    if method == "itml":
        V = X[extra["pairs"][:, 0]] - X[extra["pairs"][:, 1]]
        d = np.square(V @ G.T).sum(axis=1)
        u, lower = extra["bounds"]
        ratio = np.where(extra["similar"], np.maximum(d / u, 1), np.minimum(d / lower, 1))
        A = G.T @ G
        return float(np.trace(A) - np.linalg.slogdet(A)[1] - len(A) + np.sum(ratio - np.log(ratio) - 1))
    squares = np.square(Z).sum(axis=1)
    D = np.maximum(squares[:, None] + squares - 2 * Z @ Z.T, 0)
    same = y[:, None] == y
    np.fill_diagonal(same, False)
    np.fill_diagonal(D, np.inf)
    if method in ("nca", "mcml"):
        shifted = D - D.min(axis=1, keepdims=True)
        log_p = -shifted - np.log(np.exp(-shifted).sum(axis=1, keepdims=True))
        if method == "nca":
            return float(len(X) - np.exp(log_p)[same].sum())
        share = same / np.maximum(same.sum(axis=1, keepdims=True), 1)
        return float(-np.sum(share[same] * (log_p[same] - np.log(share[same]))))
    return _lmnn_objective(D, same, X, y)


def _lmnn_objective(D: np.ndarray, same: np.ndarray, X: np.ndarray, y: np.ndarray, k: int = 3) -> float:
    euclidean = np.square(X).sum(axis=1)[:, None] + np.square(X).sum(axis=1) - 2 * X @ X.T
    targets = np.argsort(np.where(same, euclidean, np.inf), axis=1, kind="stable")[:, :k]
    value = 0.0
    for i, own in enumerate(targets):
        others = D[i, y != y[i]]
        for j in own:
            value += 0.5 * D[i, j] + 0.5 * np.maximum(1 + D[i, j] - others, 0).sum()
    return float(value)


def peak_kb() -> int:
    """The most memory this program has held so far; Linux only."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def distances(X: np.ndarray) -> np.ndarray:
    """The floor."""
    squares = np.square(X).sum(axis=1)
    return squares[:, None] + squares - 2 * X @ X.T


def learn(arrays: str, method: str, output: str) -> None:
    """Our part of a comparison, in its own process, so that peak memory means the same on both sides."""
    stored = np.load(arrays)
    X, y = stored["X"], stored["y"]
    before = peak_kb()
    start = time.perf_counter()
    if method == "itml":
        upper, lower = stored["bounds"]
        learner = classical.ITML(upper=upper, lower=lower)
        learner.fit_pairs(stored["pairs"], stored["similar"], X)
    else:
        learner = classical.build(method).fit(X, y)
    seconds = time.perf_counter() - start
    peak = peak_kb() - before
    floor = harness.take_turns({FLOOR: lambda: distances(X)}, rounds=5, scale=1.0)[FLOOR]
    np.save(output, learner.components_)
    print(json.dumps({"seconds": seconds, "peak_mb": peak / 1024, "error": "", "floor": floor}))


def finished(command: list[str], output: Path) -> dict[str, Any]:
    done = subprocess.run([*command, str(output)], capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "components": np.load(output)}


def peer_environment(folder: Path) -> str:
    """A virtual environment with metric-learn, made by the first process for all of them; its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PEER_REQUIREMENTS]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"metric-learn cannot be installed; give --peer-python. {done.stderr.strip()}")
    return str(python)


def compare(
    name: str, data: tuple[np.ndarray, np.ndarray], method: str, python: str, folder: Path
) -> Iterator[Taken]:
    """Time and added memory of one method; the objective each side reached stands in the note."""
    X, y = data
    extra = pairs_for(X, y)
    arrays = folder / "arrays.npz"
    np.savez(arrays, X=X, y=y, **extra)
    ours = finished([sys.executable, __file__, "--learn", str(arrays), method], folder / "ours.npy")
    found = {OURS: ours}
    if method in IN_PEER and name != "features, all":
        theirs = [python, "-c", PEER_PROGRAM, str(arrays)]
        found[PEER] = finished([*theirs, method], folder / "peer.npy")
        if method == "nca":
            found[SKLEARN] = finished([*theirs, "nca_sklearn"], folder / "peer.npy")
    reached = {}
    if method in WITH_OBJECTIVE:
        reached = {
            side: objective(method, one["components"].astype(np.float64), X, y, extra)
            for side, one in found.items()
            if not one["error"]
        }
    notes = [f"{side}: {one['error']}" for side, one in found.items() if one["error"]]
    if reached:
        notes.append("objective: " + ", ".join(f"{side} {value:.6g}" for side, value in reached.items()))
    task = f"{name} ({len(X):,} × {X.shape[1]}), {method}"
    seconds: dict[str, list[float | None]] = {side: [one["seconds"]] for side, one in found.items()}
    note, facts = "; ".join(notes), {"objective": reached} if reached else {}
    yield Taken(task, {FLOOR: ours["floor"], **seconds}, "s", note, facts)
    yield Taken(f"{task}, memory added", {side: [one["peak_mb"]] for side, one in found.items()}, "MB")


def measure(names: tuple[str, ...], options: Options) -> Iterator[Taken]:
    """Every method on every data set; each fit runs in a process of its own."""
    folder = Path(options.folder)
    python = options.peer_python or peer_environment(folder / "peer")
    sets = {name: toy(name) for name in (("iris",) if options.small else names)}
    if options.features and names != ("digits",) and not options.small:
        sets |= of_features(options.features)
    for name, data in sets.items():
        for method in METHODS:
            yield from compare(name, data, method, python, folder)


NOTE = (
    "Each fit runs in a process of its own, metric-learn 0.7.0 in an environment of its own with an older "
    "scikit-learn. The lower an objective, the better; one function computes it for all sides."
)
BENCHMARKS = [
    Benchmark(
        name,
        f"Classical learners: {', '.join(sets)}",
        "one matrix of all squared distances",
        partial(measure, sets),
        NOTE,
        threads=1,
        packages=("numpy", "scipy", "scikit-learn"),
        heavy=heavy,
    )
    for name, sets, heavy in (
        ("classical", ("digits",), False),
        ("classical_more", ("iris", "wine"), True),
    )
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--learn"]:
        learn(*sys.argv[2:])
    else:
        harness.main(BENCHMARKS, __file__, __doc__)
