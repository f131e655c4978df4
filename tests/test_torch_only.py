"""Losses, mining, sampling and evaluation are of use where nothing but torch and numpy is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# torch, numpy and what torch itself requires.
ALLOWED = (
    "torch torchgen functorch triton numpy sympy mpmath networkx jinja2 markupsafe filelock fsspec "
    "typing_extensions setuptools pkg_resources _distutils_hack nearkin nvidia cuda"
)
BLOCKER = f"""
import sys
from importlib import metadata

allowed = set({ALLOWED!r}.split())
blocked = {{name for name in metadata.packages_distributions() if name not in allowed}}
assert {{"pydantic", "matplotlib", "sklearn", "scipy", "torchvision", "PIL", "accelerate"}} <= blocked


class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)


sys.meta_path.insert(0, Blocker)
import os, torch, traceback

embeddings = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
labels = torch.arange(12) % 3
"""
USES = {
    "losses": """
from nearkin import losses
for name in losses.names():
    loss = losses.build(name, num_classes=3, embedding_dim=4)
points = embeddings.clone().requires_grad_()
losses.build("multi_similarity")(points, labels).backward()
assert points.grad.abs().sum() > 0
""",
    "mining": """
from nearkin import mining
assert mining.names()
""",
    "sampling": """
from nearkin import sampling
sampler = sampling.build("hard_neighbours", labels, batch_size=4, images_per_class=2)
sampler.refresh(embeddings)
assert sum(map(len, sampler)) == 12
""",
    "evaluation": """
from nearkin import evaluation
assert evaluation.retrieval_scores(embeddings, labels).queries == 12
assert evaluation.clustering_scores(embeddings, labels)
""",
    "distributed": """
from nearkin.distributed import gather
assert gather(embeddings) is embeddings
""",
}
FAILS = {"what fails": "import scipy"}


# Each room in a process of its own, which has torch already.
EACH = """
for room, code in USES.items():
    child = os.fork()
    if not child:
        try:
            exec(code)
            os._exit(0)
        except BaseException:
            print(f"--- {room}\\n{traceback.format_exc()}", flush=True)
            os._exit(1)
    os.waitpid(child, 0)
print("--- end")
"""


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """Tracebacks by the room that they are of."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BLOCKER}\nUSES = {USES | FAILS!r}\n{EACH}"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("--- end\n"), done.stderr
    told = (part.partition("\n") for part in done.stdout.split("--- ") if part)
    return {room: text for room, _, text in told}


@pytest.mark.parametrize("room", USES)
def test_works_with_torch_and_numpy_alone(room, failures):
    assert room not in failures, failures[room]


def test_what_is_blocked_would_be_missed(failures):
    assert "scipy is not installed here" in failures["what fails"]
