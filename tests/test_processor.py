"""What the processor is said to have."""

from __future__ import annotations

import pytest
import torch

from nearkin.processor import has_bf16


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx512_f": True}, False), ({}, False)],
)
def test_bf16_needs_instructions(capabilities, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_bf16() is expected
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_bf16(), "torch multiplies in bf16 by oneDNN only"


def test_an_older_torch_does_not_say(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not has_bf16()
