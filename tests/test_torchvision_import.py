"""torchvision beside a CPU-only torch, in fresh interpreters: a process imports a module once."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

TRANSFORM = """
import torch
from torchvision.transforms import v2
import torchvision.models, timm
print(tuple(v2.CenterCrop(4)(torch.zeros(3, 8, 8)).shape))
"""


@functools.cache  # two tests ask for the same
def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_torchvision_and_timm_import_after_our_module():
    done = run("import nearkin.torchvision_import\n" + TRANSFORM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(3, 4, 4)"


def test_operators_are_declared_only_where_torchvision_dies_alone():
    alone = run("import torchvision")
    declared = run("from nearkin.torchvision_import import declare_missing_operators as d; print(d(), d())")
    assert declared.returncode == 0, declared.stderr
    assert declared.stdout.split() == [str(alone.returncode != 0)] * 2


def test_a_missing_operator_still_fails_when_called():
    if run("import torchvision").returncode == 0:
        pytest.skip("torchvision's own operators load here")
    done = run(
        "import nearkin.torchvision_import, torch, torchvision\n"
        "torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)"
    )
    assert done.returncode != 0
    assert "nms" in done.stderr
