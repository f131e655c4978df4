from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Tests run in parallel processes: one thread each keeps them from fighting over the cores.
torch.set_num_threads(1)

settings.register_profile("nearkin", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nearkin")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data beside the checkout; tests that need it skip where it is absent."""
    if not (SHARED / "datasets").is_dir():
        pytest.skip("needs the real data in ../shared, which is not here")
    return SHARED
