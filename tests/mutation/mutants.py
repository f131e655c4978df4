"""Would the tests notice? Change the source in one place at a time, and see whether a test of its room fails.

    python tests/mutation/mutants.py run --room losses --sample 60    # goes on where it stopped
    python tests/mutation/mutants.py run --room losses --again        # survivors, after new tests
    python tests/mutation/mutants.py report

A mutant is one change: ``<`` for ``<=``, ``+`` for ``-``, another constant, a condition turned round, a
statement or a result removed. It lives in the memory of one child process and never on disk. The tests of its
room run in that child until the first failure: the doctests of the file, the test files named like it, then
the others. What fails is killed; so is a mutant that runs longer than the limit (most go round for ever).
Tests that start a Python of their own see the source as it is: the score is rather too low than too high.

``results.jsonl`` beside this file has one line per mutant, ``explained.toml`` says which survivors no test
can tell from the source, and why. Strings, annotations, asserts and the words of errors are left alone.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "src" / "nearkin"
RESULTS = HERE / "results.jsonl"
EXPLAINED = HERE / "explained.toml"
ROOMS = ("losses", "mining", "evaluation", "protocols")
SEED = 0
LIMIT = 300.0
"""Seconds for the tests of a room; unchanged they need about one minute at most."""
HEAVY = (
    "torch._dynamo",
    "nearkin.torchvision_import",
    "timm",
    "matplotlib.pyplot",
    "sklearn.metrics",
    "scipy.stats",
    "pytest",
)
"""Loaded once, before any child begins; nothing of a room that is changed is among it."""

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}  # fmt: skip


class Change(NamedTuple):
    """What is put where: ``position`` counts the nodes of a file in the order of ``ast.walk``."""

    position: int
    words: str
    new: ast.AST


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: The file, from ``src/nearkin``.
        place: Class and function.
        words: What is changed.
        nth: Which of those with the same words in one place, from 1.
        line: Where it is now; no part of the name, since lines move.
        change: The change itself.
    """

    path: str
    place: str
    words: str
    nth: int
    line: int
    change: Change

    @property
    def name(self) -> str:
        """The same as long as the function around it stays as it is."""
        return f"{self.path} {self.place}: {self.words} #{self.nth}"


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Every mutant of a file.

    >>> [one.name for one in mutants_of("a.py", "def f(x):\\n    return x + 1 if x else 0")]
    ['a.py f: 0 → 1 #1', 'a.py f: 1 → 2 #1', 'a.py f: if x → if not x #1',
     'a.py f: return x + 1 if x else 0 → return None #1', 'a.py f: x + 1 → x - 1 #1']
    """
    tree = ast.parse(text)
    places, left_alone = _places(tree)
    counted: Counter[tuple[str, str]] = Counter()
    found = []
    for position, node in enumerate(ast.walk(tree)):
        if id(node) in left_alone:
            continue
        for words, new in _changes(node):
            place = places.get(id(node), "module")
            counted[place, words] += 1
            change = Change(position, words, new)
            found.append(Mutant(path, place, words, counted[place, words], node.lineno, change))
    return sorted(found, key=lambda one: (one.line, one.name))


def mutated(text: str, change: Change) -> ast.Module:
    """The file with one change.

    >>> [ast.unparse(mutated("x = 1 < 2", one.change)) for one in mutants_of("a.py", "x = 1 < 2")]
    ['x = 1 <= 2', 'x = 2 < 2', 'x = 1 < 3']
    """
    tree = ast.parse(text)
    target = next(node for position, node in enumerate(ast.walk(tree)) if position == change.position)

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.copy_location(change.new, node) if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Replace().visit(tree))


def _places(tree: ast.Module) -> tuple[dict[int, str], set[int]]:
    """Class and function of every node, and the nodes that no mutant touches."""
    places: dict[int, str] = {}
    left_alone: set[int] = set()

    def visit(node: ast.AST, place: tuple[str, ...], alone: bool) -> None:
        places[id(node)] = ".".join(place) or "module"
        if alone:
            left_alone.add(id(node))
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
                visit(
                    child,
                    (*place, child.name) if named else place,
                    alone or _is_words(node, field, child),
                )

    visit(tree, (), False)
    return places, left_alone


def _is_words(node: ast.AST, field: str, child: ast.AST) -> bool:
    """Whether a part of a node is there for readers and type checkers only."""
    if field in ("annotation", "returns", "type_comment", "decorator_list"):
        return True
    if isinstance(child, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
        return True
    if isinstance(child, ast.Call) and ast.unparse(child.func) == "overload":
        return True
    return isinstance(node, ast.Raise) and field in ("exc", "cause")


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become, each with its words."""
    for new in _replacements(node):
        yield f"{_short(node)} → {_short(new)}", new
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        new = copy.copy(node)
        new.test = ast.UnaryOp(ast.Not(), node.test)
        yield f"if {_short(node.test)} → if not {_short(node.test)}", new


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
        case ast.Compare(ops=[first, second]) if type(first) in COMPARISONS and type(second) in COMPARISONS:
            yield ast.Compare(node.left, [COMPARISONS[type(first)](), second], node.comparators)
            yield ast.Compare(node.left, [first, COMPARISONS[type(second)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield ast.BinOp(node.left, ARITHMETIC[type(op)](), node.right)
        case ast.AugAssign(op=op):
            if type(op) in ARITHMETIC:
                yield ast.AugAssign(node.target, ARITHMETIC[type(op)](), node.value)
            yield ast.Pass()
        case ast.BoolOp(op=op):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield ast.Pass()
        case ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def room_mutants(room: str) -> list[Mutant]:
    """Every mutant of a room."""
    files = sorted((SOURCE / room).rglob("*.py"))
    return [
        mutant
        for file in files
        for mutant in mutants_of(file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8"))
    ]


def sample(room: str, size: int) -> list[Mutant]:
    """Some mutants at random, always the same; a larger sample begins with the smaller one."""
    everything = room_mutants(room)
    random.Random(f"{SEED} {room}").shuffle(everything)
    return everything[:size]


def tests_of(path: str) -> list[str]:
    """The file's doctests, the test files named like it, and then all tests of its room."""
    room, stem = Path(path).parts[0], Path(path).stem
    home = ROOT / "tests" / room
    files = sorted(home.rglob("test_*.py"))
    named = [file for file in files if stem in file.stem]
    ordered = [SOURCE / path, *named, *(file for file in files if file not in named)]
    return [str(file) for file in ordered]


def outcome(path: str, tree: ast.Module | None, limit: float) -> str:
    """``killed``, ``survived`` or ``out of time``, found in a child process; None for the source as it is."""
    child = os.fork()
    if child == 0:
        os.setsid()
        _run_tests(path, tree)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "out of time"


def _run_tests(path: str, tree: ast.Module | None) -> None:
    """In the child: put the mutant in the file's place, run the tests, and end."""
    import pytest  # noqa: PLC0415  (loaded by the parent already)

    code = 1
    try:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            # What hypothesis finds stays here: another mutant's mistakes are no examples for the next.
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{folder}/hypothesis"
            silence = os.open(os.devnull, os.O_WRONLY)
            if tree is not None:
                for stream in (1, 2):
                    os.dup2(silence, stream)
                _put_in_place(SOURCE / path, compile(tree, str(SOURCE / path), "exec"))
            options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
            options += ["--assert=plain"]  # pytest reads files whose asserts it rewrites by itself, from disk
            code = int(pytest.main([*options, f"--basetemp={folder}/tests", *tests_of(path)]))
    except BaseException:  # whatever it is, the child ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _put_in_place(file: Path, code: CodeType) -> None:
    """Let the import of a file give other code."""
    loader = importlib.machinery.SourceFileLoader
    as_it_is = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        return code if Path(self.path) == file else as_it_is(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]


def run(rooms: Sequence[str], size: int, limit: float, again: bool, results: Path) -> None:
    """Try the samples of some rooms, those on file left out; or once more the survivors nobody explained."""
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in HEAVY:
        importlib.import_module(module)
    sys.modules["torch"].set_num_threads(1)
    known, explained = read(results), explanations()
    for room in rooms:
        chosen = [one for one in sample(room, size) if _wanted(known.get(one.name), again)]
        chosen = [one for one in chosen if one.name not in explained]
        if not chosen:
            continue
        if (found := outcome(chosen[0].path, None, limit)) != "survived":
            sys.exit(f"the tests of {room} fail without any mutant ({found}): mend them first")
        for number, mutant in enumerate(chosen, start=1):
            begin = time.monotonic()
            text = (SOURCE / mutant.path).read_text(encoding="utf-8")
            found = outcome(mutant.path, mutated(text, mutant.change), limit)
            row = {"mutant": mutant.name, "room": room, "line": mutant.line, "outcome": found}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            seconds = time.monotonic() - begin
            print(f"{room} {number}/{len(chosen)} {found} in {seconds:.0f} s: {mutant.name}", flush=True)
    tidy(results)


def _wanted(known: Mapping[str, object] | None, again: bool) -> bool:
    if known is None:
        return not again
    return again and known["outcome"] == "survived"


def read(results: Path) -> dict[str, dict[str, object]]:
    """The mutants on file, the last word on each."""
    if not results.exists():
        return {}
    rows = (json.loads(line) for line in results.read_text(encoding="utf-8").splitlines())
    return {row["mutant"]: row for row in rows}


def tidy(results: Path) -> None:
    """One line per mutant that still exists, in order."""
    existing = {one.name: one for room in ROOMS for one in room_mutants(room)}
    rows = [row | {"line": existing[name].line} for name, row in read(results).items() if name in existing]
    rows.sort(key=lambda row: (ROOMS.index(str(row["room"])), str(row["mutant"])))
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    results.write_text(text, encoding="utf-8")


def explanations() -> dict[str, str]:
    """Survivor → why no test can tell it from the source."""
    return tomllib.loads(EXPLAINED.read_text(encoding="utf-8")) if EXPLAINED.exists() else {}


@dataclass(frozen=True)
class Score:
    """What became of the mutants of a room."""

    mutants: int
    killed: int
    explained: int

    @property
    def share(self) -> float:
        """Killed or explained."""
        return (self.killed + self.explained) / max(self.mutants, 1)


def scores(results: Path = RESULTS) -> dict[str, Score]:
    """The mutation score of every room."""
    rows, reasons = read(results).values(), explanations()
    found = {}
    for room in ROOMS:
        own = [row for row in rows if row["room"] == room]
        survivors = [row for row in own if row["outcome"] == "survived"]
        explained = sum(row["mutant"] in reasons for row in survivors)
        found[room] = Score(len(own), len(own) - len(survivors), explained)
    return found


def report(results: Path) -> None:
    """Print the score of every room, and the survivors that nobody has explained."""
    for room, score in scores(results).items():
        print(
            f"{room:<11} {score.mutants:>4} mutants, {score.killed:>4} killed, {score.explained:>3} explained"
            f", {score.mutants - score.killed - score.explained:>3} survived: {score.share:.1%}"
        )
    reasons = explanations()
    for name, row in read(results).items():
        if row["outcome"] == "survived" and name not in reasons:
            print(f"  line {row['line']}: {name}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "report", "list"))
    parser.add_argument("--room", action="append", choices=ROOMS, help="all of them by default")
    parser.add_argument("--sample", type=int, default=60, help="mutants per room")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds per mutant")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    rooms = given.room or ROOMS
    if given.command == "report":
        report(given.results)
    elif given.command == "list":
        for room in rooms:
            print(f"{room}: {len(room_mutants(room))} mutants")
    else:
        run(rooms, given.sample, given.limit, given.again, given.results)


if __name__ == "__main__":
    main()
