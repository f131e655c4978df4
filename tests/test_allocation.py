from __future__ import annotations

import subprocess
import sys

import pytest

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
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True).stdout)
        for how in ("keep", "default")
    }
    assert faults["keep"] < 0.8 * faults["default"]  # how much less depends on where the heap lies
