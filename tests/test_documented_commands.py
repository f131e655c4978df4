"""Every ``nearkin …`` that README and the pages tell a reader to type is typed here, on small data.

A page's bash blocks are run one by one, each in a folder of its own that holds what the documents speak of:
``birds/`` (a folder per class), ``birds.toml``, ``pairs.csv``, ``captions.csv``, ``people.csv``,
``points.csv``, ``mine.npz`` and, unless the block trains it, the finished run ``runs/birds``. What takes
hours or a network is listed in ``NOT_RUN`` with the reason; its options are checked all the same. New
pages need nothing: their blocks are found.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import typer.main
from PIL import Image

from nearkin.cli.app import app
from nearkin.recipe import Recipe
from test_documents import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
_SERVES = "goes on until it is stopped; tests/serving/test_served_documents.py starts it"
NOT_RUN = {
    "nearkin tournament": "trains every loss, about four minutes; tests/tournament runs it on less",
    "nearkin tournament pairs.csv --seeds 3": "tests/tournament/test_tournament_of_pairs.py runs it on less",
    "nearkin tournament --tune": "searches every loss; tests/benchmark/test_tuned_plan.py does it on less",
    "nearkin benchmark embedded": "takes a night; tests/benchmark/test_tuned_plan.py does the same on less",
    "nearkin tune --sampler coordinate --trial-epochs 3 --keep both -s loss.name=multi_similarity": (
        "122 trials; tests/tuning/test_stages.py does the same on less"
    ),
    "nearkin serve birds.index": _SERVES,
    "nearkin serve birds.index other.index": _SERVES,
    "nearkin serve birds.index --host 0.0.0.0 --api-key-file key": _SERVES,
    **dict.fromkeys(
        (
            "nearkin index runs/birds birds -o postgresql://localhost/shop/birds",
            "nearkin search postgresql://localhost/shop/birds birds/bird07/2.png -k 5",
        ),
        "needs a server; tests/index/test_servers.py starts one",
    ),
    "nearkin explain forces -o moving.html": "moves every loss a long way; the site is built with it",
}
"""Commands, as written, that are only looked at, and why."""
LARGE = ("network.name=", "network.weights=", "training.epochs=")
"""Settings that are replaced by ``SMALL``, after the recipe as written was found to be one."""
SMALL: dict[str, str | int] = {
    "network.name": "convnet",
    "network.size": 16,
    "network.width": 4,
    "network.embedding_dim": 8,
    "training.epochs": 1,
    "sampler.batch_size": 24,
}
RECIPE = """
[data]
name = "folder"
root = "birds"
transform = "resized_crop"
"""

PAIRS = [(n, n + step) for n in range(20) for step in (0, 1, 2)]
"""Classes of the pairs in ``pairs.csv``."""

Command = list[str]


def bash_blocks(page: str) -> list[list[Command]]:
    """The nearkin commands of each bash block that has some, without the word nearkin."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```(?:bash|sh|console)\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return [commands for commands in map(_commands, blocks) if commands]


def _commands(block: str) -> list[Command]:
    lines = block.replace("\\\n", " ").splitlines()
    parts = [part.strip().removeprefix("$ ") for line in lines for part in line.split("&&")]
    return [shlex.split(part, comments=True)[1:] for part in parts if part.startswith("nearkin ")]


def inline_commands(page: str) -> list[Command]:
    """Those in running text; where something is left out (…) nothing can be said."""
    found = re.findall(r"`nearkin ([^`]+)`", (ROOT / page).read_text(encoding="utf-8"))
    return [shlex.split(text) for text in found if "…" not in text]


BLOCKS = [(page, number) for page in PAGES for number in range(len(bash_blocks(page)))]


def find_command(arguments: Command) -> tuple[click.Command, Command]:
    """The command that these arguments reach, and the arguments that are left for it."""
    found, rest = typer.main.get_command(app), list(arguments)
    while hasattr(found, "commands") and rest and rest[0] in found.commands:
        found = found.commands[rest.pop(0)]
    return found, rest


def check_options(arguments: Command) -> None:
    """The command exists and has every option that it is given."""
    command, rest = find_command(arguments)
    assert command.name != "nearkin", f"there is no command nearkin {' '.join(arguments)}"
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in options, f"nearkin {' '.join(arguments)}: no option {word}"


@pytest.fixture(scope="session")
def birds(tmp_path_factory) -> Path:
    """Forty-four classes (few cannot be split) of four photos that differ in size, as photos do."""
    folder = tmp_path_factory.mktemp("documents") / "birds"
    numbers = np.random.default_rng(0)
    for name in (f"bird{number:02}" for number in range(44)):
        (folder / name).mkdir(parents=True)
        colour = numbers.integers(30, 225, 3)
        for number in range(4):
            height, width = numbers.integers(30, 50, 2)
            pixels = colour + numbers.integers(-30, 30, (height, width, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def desk(birds, tmp_path, monkeypatch, nearkin) -> Path:
    """The folder in which a reader of the documents sits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(birds.parent / "cache"))
    shutil.copytree(birds, "birds")
    small = [f"--set={key}={value}" for key, value in SMALL.items()]
    Path("plain.toml").write_text(RECIPE)
    _, recipe, _ = nearkin("train", "plain.toml", *small, "--show-recipe")
    Path("birds.toml").write_text(recipe)
    Path("points.csv").write_text("x,y,label\n1,0,a\n0.9,0.3,a\n0,1,b\n0.2,0.9,b\n")
    embeddings = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    lines = [f"birds/bird{n:02}/0.png,birds/bird{m:02}/1.png,{int(n == m)}" for n, m in PAIRS]
    Path("pairs.csv").write_text("\n".join(["a,b,same", *lines]))
    told = [f"birds/bird{n:02}/{number}.png,bird number {n}" for n in range(44) for number in range(2)]
    Path("captions.csv").write_text("\n".join(["image,text", *told]))
    Path("words.txt").write_text("a small bird\n")
    seen = [f"birds/bird{n:02}/{number}.png,bird{n:02},c{number}" for n in range(44) for number in range(4)]
    Path("people.csv").write_text("\n".join(["path,label,camera", *seen]))
    np.savez("mine.npz", embeddings=embeddings, labels=np.arange(12) % 3)
    return tmp_path


@pytest.fixture
def finished_run(birds, desk, nearkin) -> Path:
    """``runs/birds``, trained once for all."""
    kept = birds.parent / "run"
    if not kept.exists():
        code, _, error = nearkin("train", "birds.toml", "--output", "runs/birds")
        assert code == 0, error
        shutil.copytree("runs/birds", kept)
    shutil.copytree(kept, "runs/birds", dirs_exist_ok=True)
    return desk / "runs" / "birds"


def smaller(arguments: Command) -> Command:
    """The same training with a network and a budget for tests."""
    kept: Command = []
    words = iter(arguments)
    for word in words:
        if word in ("--set", "-s"):
            setting = next(words)
            if not setting.startswith(LARGE):
                kept += [word, setting]
        else:
            kept.append(word)
    return [*kept, *(f"--set={key}={value}" for key, value in small_settings(arguments).items())]


def small_settings(arguments: Command) -> dict[str, str | int]:
    """Those of a small network; of images and texts, of the small one that they get by default."""
    if "captions.csv" not in arguments:
        return SMALL
    return {"training.epochs": 1, "network.name": "image_text", "network.cached_trunk": "pooling"}


@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_the_commands_of_a_bash_block_run(page, number, desk, nearkin, request):
    commands = bash_blocks(page)[number]
    if not any(arguments[0] == "train" for arguments in commands) and "runs" in str(commands):
        request.getfixturevalue("finished_run")
    for arguments in commands:
        check_options(arguments)
        if shlex.join(["nearkin", *arguments]) in NOT_RUN:
            continue
        if arguments[0] == "train":
            code, _, error = nearkin(*arguments, "--show-recipe")
            assert code == 0, error
            arguments = smaller(arguments)  # noqa: PLW2901
        code, _, error = nearkin(*arguments)
        assert code == 0, f"nearkin {shlex.join(arguments)}: {error}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_running_text_exist_with_their_options(page):
    for arguments in inline_commands(page):
        check_options(arguments)


def test_the_recipes_of_the_readme_are_recipes(desk, nearkin):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        Recipe.parse(tomllib.loads(block))
        small = block.replace("timm:resnet50", "timm:test_resnet")  # it is run, to be divided into stages
        Path("shown.toml").write_text(small, encoding="utf-8")
        code, _, error = nearkin("train", "shown.toml", "--show-recipe")
        assert code == 0, error


def test_there_are_commands_to_run():
    assert len(BLOCKS) >= 5
    written = {shlex.join(["nearkin", *one]) for page, number in BLOCKS for one in bash_blocks(page)[number]}
    assert set(NOT_RUN) <= written, "an exemption that no page needs any more"


def test_a_misspelt_option_or_command_would_be_found():
    with pytest.raises(AssertionError, match="no option --outptu"):
        check_options(["train", "birds.toml", "--outptu", "runs"])
    with pytest.raises(AssertionError, match="no command"):
        check_options(["trian"])


def test_commands_are_found_behind_others_over_several_lines_and_before_comments():
    block = "pip install . && nearkin tournament\nnearkin train a.toml \\\n  --set b=c  # why\n# nearkin x\n"
    assert _commands(block) == [["tournament"], ["train", "a.toml", "--set", "b=c"]]
