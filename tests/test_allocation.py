from __future__ import annotations

import subprocess
import sys

import pytest

import nearkin

PROGRAM = """
import os, resource, torch
from nearkin.allocation import keep_freed_memory
torch.set_num_threads(1)

def faults():
    for _ in range(3):
        torch.ones(16 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

default = faults()
os.environ["NEARKIN_KEEP_FREED_MEMORY"] = "0"
keep_freed_memory()
refused = faults()
del os.environ["NEARKIN_KEEP_FREED_MEMORY"]
keep_freed_memory()
print(default, refused, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tunes the C library of Linux")
def test_large_tensors_find_their_memory_warm():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    default, refused, kept = map(int, done.stdout.split())
    assert refused > 0.9 * default
    assert kept < 0.8 * default  # how much less depends on where the heap lies


def test_whoever_loads_a_model_in_python_has_warm_memory_too(monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr("nearkin.api.keep_freed_memory", lambda: called.append(True))
    with pytest.raises(ValueError, match="nothing"):
        nearkin.load(tmp_path / "nothing")
    assert called
