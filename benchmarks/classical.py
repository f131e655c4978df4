"""Our classical learners beside metric-learn's and scikit-learn's: objective reached, time, memory.

metric-learn 0.7.0 does not run on today's scikit-learn, so it gets a virtual environment of its own (made in
a temporary folder, or given with ``--peer-python``) and learns there, in a process of its own, from the same
arrays. One function computes the objective of both results. ITML gets the same pairs and bounds either side.

    python benchmarks/classical.py                                    # iris, wine, digits
    python benchmarks/classical.py --features cub.npz --only cub64    # features of one's own

``--features`` takes an npz file with ``train (n, d)`` and ``train_labels (n,)``; it becomes the data sets
``cub64`` (2,000 rows, the first classes, PCA to 64 dimensions) and ``cub64_full`` (all rows, ours alone).
Rows measured earlier stay in the results until they are measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from nearkin import classical
from nearkin.classical.constraints import default_pair_count, distance_bounds, random_pairs

RESULTS = Path(__file__).parent / "results" / "classical.json"
METHODS = ("lmnn", "nca", "mcml", "itml", "rca", "lfda")
IN_PEER = ("lmnn", "nca", "itml", "rca", "lfda")  # metric-learn has no MCML
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


def data_sets(features: Path | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    sets = {}
    for name, load in (("iris", load_iris), ("wine", load_wine), ("digits", load_digits)):
        X, y = load(return_X_y=True)
        # Many distances are equal here; a touch of noise gives both sides the same nearest neighbours.
        X = X + 1e-5 * X.std(axis=0) * np.random.default_rng(0).normal(size=X.shape)
        sets[name] = (StandardScaler().fit_transform(X) if name == "wine" else X, y)
    if features is not None:
        stored = np.load(features)
        y = np.unique(stored["train_labels"], return_inverse=True)[1]
        reduced = PCA(64, svd_solver="full").fit_transform(stored["train"].astype(np.float64))
        first = np.argsort(y, kind="stable")[:2000]
        sets["cub64"] = (reduced[first], y[first])
        sets["cub64_full"] = (reduced, y)
    return sets


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


def run_ours(method: str, X: np.ndarray, y: np.ndarray, extra: dict[str, np.ndarray]) -> dict[str, Any]:
    before = peak_kb()
    start = time.perf_counter()
    if method == "itml":
        upper, lower = extra["bounds"]
        fitted = classical.ITML(upper=upper, lower=lower).fit_pairs(extra["pairs"], extra["similar"], X)
    else:
        fitted = classical.build(method).fit(X, y)
    seconds = time.perf_counter() - start
    peak = peak_kb() - before
    return {"seconds": seconds, "peak_mb": peak / 1024, "error": "", "components": fitted.components_}


def ours_in_its_own_process(arrays: Path, method: str, folder: Path) -> dict[str, Any]:
    """As the peer: a fresh process, so that peak memory means the same on both sides."""
    output = folder / "ours.npy"
    command = [sys.executable, str(Path(__file__)), "--ours", str(arrays), method, str(output)]
    return _finished(command, output)


def peer_in_its_own_process(python: str, arrays: Path, method: str, folder: Path) -> dict[str, Any]:
    output = folder / "peer.npy"
    return _finished([python, "-c", PEER_PROGRAM, str(arrays), method, str(output)], output)


def _finished(command: list[str], output: Path) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "components": np.load(output)}


def peer_environment(folder: Path) -> str:
    """A virtual environment with metric-learn; its Python."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER_REQUIREMENTS], check=True)
    return python


@dataclass(frozen=True)
class Task:
    """One data set, and the pairs drawn from it."""

    name: str
    X: np.ndarray
    y: np.ndarray
    extra: dict[str, np.ndarray]

    def row(self, method: str, library: str, results: list[dict[str, Any]]) -> dict[str, Any]:
        """What one library's runs of one method came to."""
        last = results[-1]
        value = None
        if method in ("lmnn", "nca", "mcml", "itml") and not last["error"]:
            value = objective(method, last["components"].astype(np.float64), self.X, self.y, self.extra)
        return {
            "data": f"{self.name} ({len(self.X):,} × {self.X.shape[1]})",
            "method": method,
            "library": library,
            "objective": value,
            "seconds": float(np.median([r["seconds"] for r in results])),
            "peak_mb": float(np.median([r["peak_mb"] for r in results])),
            "error": last["error"],
        }


def compare(task: Task, methods: list[str], python: str, runs: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arrays = folder / "arrays.npz"
        np.savez(arrays, X=task.X, y=task.y, **task.extra)
        for method in methods:
            results: dict[str, list[dict[str, Any]]] = {"nearkin": [], "metric-learn": [], "scikit-learn": []}
            for _ in range(runs):  # interleaved, so that a busy moment of the machine hits all sides
                results["nearkin"].append(ours_in_its_own_process(arrays, method, folder))
                if method in IN_PEER and task.name != "cub64_full":
                    results["metric-learn"].append(peer_in_its_own_process(python, arrays, method, folder))
                    if method == "nca":
                        sklearn = peer_in_its_own_process(python, arrays, "nca_sklearn", folder)
                        results["scikit-learn"].append(sklearn)
            rows += [task.row(method, library, found) for library, found in results.items() if found]
    return rows


def show(rows: list[dict[str, Any]]) -> list[str]:
    """The table as lines of markdown, ratios of time against ours in the same run."""
    lines = [
        "| data | method | library | objective (lower is better) | seconds | times ours | added memory, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    own = {(r["data"], r["method"]): r["seconds"] for r in rows if r["library"] == "nearkin"}
    for r in rows:
        value = r["error"] or ("" if r["objective"] is None else f"{r['objective']:.6g}")
        ratio = r["seconds"] / own[r["data"], r["method"]]
        cells = r["data"], r["method"], r["library"], value
        lines.append(f"| {' | '.join(cells)} | {r['seconds']:.3g} | {ratio:.1f} | {r['peak_mb']:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", help="a Python that has metric-learn 0.7.0 and scikit-learn < 1.6")
    parser.add_argument("--features", type=Path, help="npz with train and train_labels")
    parser.add_argument("--only", nargs="+", help="data sets to run")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--runs", type=int, default=1, help="repetitions, interleaved; the median counts")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--ours", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        arrays, method, output = options.ours
        data = np.load(arrays)
        result = run_ours(method, data["X"], data["y"], {k: data[k] for k in ("pairs", "similar", "bounds")})
        np.save(output, result.pop("components"))
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        python = options.peer_python or peer_environment(Path(folder))
        rows = []
        for name, (X, y) in data_sets(options.features).items():
            if options.only is None or name in options.only:
                rows += compare(Task(name, X, y, pairs_for(X, y)), options.methods, python, options.runs)
        peer_versions = subprocess.run(
            [python, "-c", "import sklearn, numpy; print(sklearn.__version__, numpy.__version__)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    report(rows, peer_versions, options.output)


def report(rows: list[dict[str, Any]], peer_versions: list[str], output: Path) -> None:
    """Print this run; store it with earlier ones, as JSON and as markdown beside it."""
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    about = (
        f"Python {platform.python_version()}; ours: numpy {version('numpy')}, scipy {version('scipy')}, "
        f"scikit-learn {version('scikit-learn')}; peer: metric-learn 0.7.0, scikit-learn {peer_versions[0]}, "
        f"numpy {peer_versions[1]}; threads: {threads}."
    )
    lines = show(rows)
    table = Table(*(cell.strip() for cell in lines[0].strip("|").split("|")))
    for line in lines[2:]:
        table.add_row(*(cell.strip() for cell in line.strip("|").split("|")))
    Console().print(table)
    earlier = json.loads(output.read_text(encoding="utf-8"))["rows"] if output.exists() else []
    measured = {(r["data"], r["method"], r["library"]): r for r in [*earlier, *rows]}
    kept = sorted(
        measured.values(), key=lambda r: (r["data"], METHODS.index(r["method"]), r["library"] != "nearkin")
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"about": about, "rows": kept}, indent=1), encoding="utf-8")
    markdown = ["# Classical learners", "", about, "", *show(kept), ""]
    output.with_suffix(".md").write_text("\n".join(markdown), encoding="utf-8")


if __name__ == "__main__":
    main()
