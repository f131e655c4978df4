from __future__ import annotations

from pathlib import Path

import pytest
from photographs import write_photos


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small images: twelve classes of six."""
    return write_photos(tmp_path_factory.mktemp("own") / "photos", seed=0)
