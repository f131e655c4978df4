"""What the processor of this machine has instructions for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def has_bf16() -> bool:
    """Whether the processor multiplies in bf16 itself, and torch's products use that."""
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch does not say
    return torch.backends.mkldnn.is_available() and any(known.get(name, False) for name in _BF16_INSTRUCTIONS)
