"""torchvision beside a CPU-only torch, in fresh interpreters: a process imports a module once."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from nearkin.torchvision_import import declare_missing_operators as declare
print(declare(), declare())

import torch
from torchvision.transforms import v2
import torchvision.models, timm
print(tuple(v2.CenterCrop(4)(torch.zeros(3, 8, 8)).shape))
torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    return run(PROGRAM)


@pytest.fixture(scope="module")
def dies_alone() -> bool:
    return run("import torchvision").returncode != 0


def test_torchvision_and_timm_import_after_our_module(done):
    assert done.stdout.splitlines()[1:] == ["(3, 4, 4)"], done.stderr


def test_operators_are_declared_only_where_torchvision_dies_alone(done, dies_alone):
    assert done.stdout.splitlines()[0].split() == [str(dies_alone)] * 2


def test_a_missing_operator_still_fails_when_called(done, dies_alone):
    if not dies_alone:
        pytest.skip("torchvision's own operators load here")
    assert done.returncode != 0
    assert "nms" in done.stderr
