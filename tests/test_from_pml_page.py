"""The page for people who come from pytorch-metric-learning names everything they may have used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import pytorch_metric_learning
from pytorch_metric_learning import distances, miners, reducers, regularizers, samplers
from pytorch_metric_learning import losses as pml

from nearkin import losses

PAGE = Path(__file__).parents[1] / "docs" / "from_pytorch_metric_learning.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]


def named_on_their_side() -> set[str]:
    """Every name in the first column of a table."""
    return {name for row in ROWS for name in re.findall(r"\b[A-Z]\w+", row.split("|")[1])}


@pytest.mark.parametrize("room", [pml, miners, samplers, regularizers, distances, reducers])
def test_every_name_of_theirs_has_a_row(room):
    exported = {name for name in dir(room) if name[0].isupper()}
    assert exported <= named_on_their_side(), sorted(exported - named_on_their_side())


def test_the_version_is_that_of_the_page():
    major_minor = ".".join(pytorch_metric_learning.__version__.split(".")[:2])
    assert f"version {major_minor}" in PAGE.read_text(encoding="utf-8")


def test_what_is_ours_exists():
    ours = {name for row in ROWS for name in re.findall(r"`([a-z_]+)\(", row.split("|")[2])}
    assert ours - {"loss"} <= set(losses.names())
    assert len(ours) > 20
