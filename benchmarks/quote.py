"""The figures that README and pages quote, made from ``benchmarks/results``: nobody writes them by hand.

    python benchmarks/quote.py             # write the tables anew
    python benchmarks/quote.py --check     # say whether they agree with the results

A table stands between two comments in the document. A row whose benchmark has no result says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import figures
import quoted_tables
from figures import FLOOR, NOT_MEASURED, OURS, THESIS, Result

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    ROOT / "README.md": "measured",
    ROOT / "docs" / "stores.md": "stores",
    ROOT / "docs" / "export.md": "runtimes",
    ROOT / "docs" / "scale.md": "million",
    ROOT / "docs" / "many_classes.md": "classes",
}
"""Which table stands in which document."""
PHOTOGRAPHS = tuple(
    f"{size}, {scheme}"
    for size in ("long side 500", "short side 500", "short side 1000")
    for scheme in ("resized_crop", "simple_crop", "evaluation")
)


@dataclass(frozen=True)
class Quote:
    """A line of the table: which rows of which result, and beside whom."""

    what: str
    result: str
    rows: Sequence[str]
    floor: str
    beside: tuple[tuple[str, str], ...] = ()
    """Peers: what the reader calls them, and what the result does."""


PML = ("pytorch-metric-learning", "PML")
QUOTES = (
    Quote(
        "one step of the thesis's ten losses, mining included, batch 1,024",
        "losses_b1024",
        THESIS,
        "its matrix products",
        (PML,),
    ),
    Quote("the same, batch 180", "losses_b180", THESIS, "its matrix products", (PML,)),
    Quote("the same, batch 180, 11,318 classes", "losses_sop", THESIS, "its matrix products", (PML,)),
    Quote(
        "memory at the peak of a step with all triplets, batch 4,096",
        "losses_memory",
        ["triplet_all"],
        "that of its matrix products",
        (PML,),
    ),
    Quote(
        "all retrieval scores of 20,000 × 512",
        "evaluation",
        ["all retrieval scores, 20,000 × 512"],
        "half the N × N product",
        (("pytorch-metric-learning's calculator", "PML"), ("faiss flat search, k = 1,001", "faiss")),
    ),
    Quote(
        "Recall@1, 2, 4, 8 of 20,000 × 512",
        "evaluation",
        ["Recall@1, 2, 4, 8, 20,000 × 512"],
        "half the N × N product",
        (("the whole N × N product", "plain product"),),
    ),
    Quote(
        "a step of the ranking losses (SmoothAP, Sup-AP, Recall@k, PNP), batch 1,024",
        "ranking_b1024",
        [f"{name}, B 1,024 (256 × 4)" for name in ("smooth_ap", "sup_ap", "recall_at_k", "pnp")],
        "its matrix products",
        (("the same with a tensor of B³", "B³"),),
    ),
    Quote(
        "exact search of an index of 100,000 × 512, one query",
        "index",
        ["one query, float32, 100,000 × 512"],
        "reading the vectors once",
        (("faiss flat search", "faiss"),),
    ),
    Quote(
        "the same in int8, one query",
        "index",
        ["one query, int8, 100,000 × 512"],
        "reading the bytes once",
        (("faiss flat search", "faiss"), ("float32", "float32")),
    ),
    Quote(
        "the same, 1,000 queries",
        "index",
        ["1,000 queries, float32, 100,000 × 512"],
        "their product in float32",
        (("faiss flat search", "faiss"),),
    ),
    Quote(
        "a step of ArcFace with 1,000,000 classes, 1 % of them sampled, batch 512",
        "classes",
        ["arcface, C 1,000,000"],
        "its matrix products",
        (("all classes, in tiles", "dense"), ("pytorch-metric-learning", "PML")),
    ),
    Quote(
        "distance-weighted mining, batch 1,024",
        "mining",
        ["distance_weighted, scattered, B 1,024"],
        "the B × B product",
        (("DistanceWeightedMiner", "PML"),),
    ),
    Quote(
        "an epoch of balanced batches, 59,551 images",
        "mining",
        ["balanced, one epoch of SOP, with batch_size"],
        "one random order",
        (("MPerClassSampler with a batch size", "PML"),),
    ),
    Quote(
        "the same",
        "mining",
        ["balanced, one epoch of SOP, without batch_size"],
        "one random order",
        (("MPerClassSampler without", "PML"),),
    ),
    Quote(
        "JPEGs of 500 to 1,000 pixels, decoded and augmented",
        "input",
        PHOTOGRAPHS,
        "decoding alone",
        (
            ("torchvision's ImageFolder", "ImageFolder, Pillow"),
            ("the same with tensor transforms", "ImageFolder, tensors"),
        ),
    ),
    Quote("an epoch of a run", "training", ["multi_similarity"], "a bare PyTorch loop"),
    Quote(
        "an epoch on a cached trunk, EfficientNet-Lite0",
        "trunk",
        ["epoch on a cached trunk"],
        "the same on data in memory",
        (("the trunk frozen", "frozen"), ("the whole network trained", "full")),
    ),
    Quote(
        "a step of training after a cached trunk in bf16, the same network",
        "precision",
        ["a step after blocks.4, batch 120"],
        "its matrix products",
        (("torch's own bf16", "torch's bf16"), ("float32", "float32")),
    ),
    Quote(
        "LMNN on digits (1,797 × 64), one thread",
        "classical",
        ["digits (1,797 × 64), lmnn"],
        "one matrix of all distances",
        (("metric-learn, in an environment of its own", "metric-learn"),),
    ),
)
HEADER = ("what", "ours ÷ floor", "the floor", "beside", "theirs ÷ ours")


def table(folder: Path = figures.RESULTS) -> str:
    """README's table, and where its figures come from."""
    lines = [f"| {' | '.join(HEADER)} |", "|---|---:|---|---|---:|"]
    results = {quote.result: figures.current(quote.result, folder) for quote in QUOTES}
    for quote in QUOTES:
        lines += [f"| {' | '.join(line)} |" for line in _lines(quote, results[quote.result])]
    measured = [result for result in results.values() if result]
    return "\n".join([*lines, "", *(origins(measured) if measured else [f"All of it is {NOT_MEASURED}."])])


TABLES: dict[str, Callable[[Path], str]] = {
    "measured": table,
    "stores": quoted_tables.stores,
    "runtimes": quoted_tables.export,
    "million": quoted_tables.million,
    "classes": quoted_tables.classes,
}


def _lines(quote: Quote, result: Result | None) -> list[tuple[str, ...]]:
    first = shown(result, quote.rows, OURS, FLOOR)
    lines = []
    for number, (called, peer) in enumerate(quote.beside or (("", ""),)):
        ratio = shown(result, quote.rows, peer, OURS) if peer else ""
        start = ("", "", "") if number else (quote.what, first, quote.floor)
        lines.append((*start, called, ratio))
    return lines


def shown(result: Result | None, rows: Sequence[str], above: str, below: str) -> str:
    """A figure as it is quoted: median, range over processes, and that over rows if there are several."""
    if result is None:
        return NOT_MEASURED
    figure = result.ratio(rows, above, below)
    if figure is None:
        return "stopped: too much memory"
    if len(rows) == 1:
        return f"{figure:×}"
    low, high = result.spread(rows, above, below)
    return f"{figure:×}; rows {figures.number(low)}–{figures.number(high)}"


def origins(results: Sequence[Result]) -> list[str]:
    """Where the quoted figures were measured: a line for each set of conditions."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        about = result.conditions
        key = (about["processor"], about["cores"], about["date"], about["commit"][:9])
        groups.setdefault(tuple(map(str, key)), []).append(result)
    lines = []
    for (processor, cores, date, commit), found in groups.items():
        highest = max(share for result in found for share in result.load["shares"])
        names = ", ".join(result.name for result in found)
        lines.append(
            f"- {processor}, {cores} cores, {date}, commit {commit}, others used at most {highest:.1%} "
            f"of the machine: {names}."
        )
    return lines


def marked(text: str, name: str, content: str) -> str:
    """The text with what stands between the comments of this name replaced."""
    start, end = f"<!-- figures: {name} -->", f"<!-- end of figures: {name} -->"
    pattern = re.compile(f"{re.escape(start)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"the document needs one pair of comments {start} and {end}")
    return pattern.sub(lambda _: f"{start}\n{content}\n{end}", text)


def disagreeing(folder: Path = figures.RESULTS) -> dict[Path, str]:
    """Documents that do not say what the results say, and what they should say."""
    wrong = {}
    for document, name in DOCUMENTS.items():
        text = document.read_text(encoding="utf-8")
        right = marked(text, name, TABLES[name](folder))
        if right != text:
            wrong[document] = right
    return wrong


def write() -> list[str]:
    """Bring the documents up to date; which were changed."""
    wrong = disagreeing()
    for document, right in wrong.items():
        document.write_text(right, encoding="utf-8")
    return [document.name for document in wrong]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail where figures disagree")
    if parser.parse_args().check:
        wrong = ", ".join(document.name for document in disagreeing())
        sys.exit(f"{wrong}: figures differ from benchmarks/results; run benchmarks/quote.py" if wrong else 0)
    print("\n".join(f"written: {name}" for name in write()) or "nothing to change")


if __name__ == "__main__":
    main()
