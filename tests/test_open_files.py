from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")

CODE = """
import resource, sys
from nearkin.open_files import allow_open_files
soft, hard, workers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    allow_open_files(workers)
except ValueError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "workers", "said"),
    [
        (20, 20, 0, "20\n"),
        (20, 4096, 2, "96\n"),
        (1024, 4096, 2, "1024\n"),
        (
            20,
            20,
            2,
            "data.workers=2 needs about 96 open files and the system allows 20: raise ulimit -n, or set "
            "data.workers=0\n20\n",
        ),
    ],
)
def test_the_limit_is_raised_or_told(soft, hard, workers, said):
    command = [sys.executable, "-c", CODE, *map(str, (soft, hard, workers))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == said
