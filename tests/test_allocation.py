from __future__ import annotations

import os
import subprocess
import sys

import pytest

import nearkin

PROGRAM = """
import resource, sys, torch
from nearkin.allocation import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(3):
    torch.ones(16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(16 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tunes the C library of Linux")
def test_large_tensors_find_their_memory_warm():
    def faults(how: str, **environment: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        ran = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
        return int(ran.stdout)

    default = faults("default")
    assert faults("keep") < 0.8 * default  # how much less depends on where the heap lies
    assert faults("keep", NEARKIN_KEEP_FREED_MEMORY="0") > 0.9 * default


def test_whoever_loads_a_model_in_python_has_warm_memory_too(monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr("nearkin.api.keep_freed_memory", lambda: called.append(True))
    with pytest.raises(ValueError, match="nothing"):
        nearkin.load(tmp_path / "nothing")
    assert called
