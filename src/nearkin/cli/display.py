"""What the commands show when they are done: tables and where everything is."""

from __future__ import annotations

import inspect
import itertools
import shlex
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from nearkin import losses
from nearkin.cli.views import chosen_on_test
from nearkin.data import BadImage, DataSet, SampleSet, leave_out
from nearkin.data.duplicates import Copies
from nearkin.data.looking import Look, look_at
from nearkin.data.registry import registry
from nearkin.display import console, shown_path
from nearkin.protocols import Examination
from nearkin.protocols.doubtful_labels import TABLE, DoubtfulLabels
from nearkin.protocols.final import FINAL
from nearkin.training import Run
from nearkin.training.result import DataSummary, Result, Start

__all__ = ["console", "shown_path"]


def print_run(run: Run, pictures: list[Path]) -> None:
    """Print a run's scores and where everything is."""
    result = run.result
    start = result.start
    if start is not None and start.verdict != "helped":
        console.print(Text(result.verdict, style="bold yellow"))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    tested = _tested(result.data)
    scores = {
        **_test_rows(result),
        "± over folds": result.test_deviation,
        "concatenated": None if result.concatenated is None else result.concatenated.to_dict(),
        **({} if start is None else {start.name: start.test.to_dict()}),
        tested.replace("test", "validation"): None
        if result.validation is None
        else result.validation.to_dict(),
    }
    keys = [f"recall_at_{k}" for k in result.test.recall_at]
    for k in result.test.recall_at:
        table.add_column(f"Recall@{k}", justify="right")
    table.add_column("MAP@R", justify="right")
    for split, values in scores.items():
        if values is not None:
            numbers = [f"{100 * values[key]:.2f}" for key in [*keys, "map_at_r"]]
            table.add_row(f"[bold]{split}" if split in _test_rows(result) else split, *numbers)
    console.print(table)
    _print_verification(result)
    epoch = "" if result.epoch is None else f"epoch {result.epoch}: "
    style = "bold yellow" if chosen_on_test(run) else "dim"
    console.print(f"[{style}]{epoch}{result.rule}; {tested} are never trained on[/]")
    if result.threshold is not None:
        console.print(Text(f"threshold {result.threshold}", style="dim"))
    reasons = {key: reason for key, reason in result.chosen.items() if reason != "default"}
    if "network.name" in reasons:  # told before training began
        console.print(Text(f"chosen    {len(reasons)} settings, with reasons in recipe.toml", style="dim"))
        reasons = {}
    for key, reason in reasons.items():
        value = _setting(run.terms, key)
        said = f"{key} = {value}" if value != "" else key
        console.print(Text(f"chosen    {said}: {reason}", style="dim"))
    for note in () if result.data is None else result.data.notes:
        console.print(Text(f"note      {note}"))
    for text in result.warnings:
        console.print(Text.assemble(("warning   ", "yellow"), text))
    console.print(Text(f"run       {shown_path(run.path)}"))
    final = _final(run)
    if final is not None:
        console.print(Text(f"final     {shown_path(final)}, trained on all classes, untested"))
    _print_pictures(pictures)
    if start is not None:
        for line in verdict_lines(run, start):
            console.print(Text(line))


def _test_rows(result: Result) -> dict[str, dict[str, Any]]:
    """Scores of what was tested; of two modalities, of both directions of search."""
    directions = {f"test, {name.replace('_', ' ')}": one for name, one in result.directions.items()}
    tested = directions or {_tested(result.data): result.test}
    return {name: one.to_dict() for name, one in tested.items()}


def _print_verification(result: Result) -> None:
    """Scores of the known pairs of each network, where the data is of pairs, and of what it started from."""
    rows = {"test pairs" if one.run == "." else one.run: one.verification for one in result.networks}
    if result.start is not None:
        rows[result.start.name] = result.start.verification
    found = {name: one for name, one in rows.items() if one is not None}
    if not found:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    titles = {"roc_auc": "ROC AUC", "equal_error_rate": "equal error", "accuracy_at_threshold": "accuracy"}
    rates = [
        key for key, value in next(iter(found.values())).to_dict().items() if key.startswith("tar_at_far")
    ]
    told = [key for key in rates if any(one.to_dict()[key] is not None for one in found.values())]
    titles |= {key: f"true at {float(key.removeprefix('tar_at_far_')):.2%} false" for key in told}
    for title in titles.values():
        table.add_column(title, justify="right")
    for name, one in found.items():
        values = [one.to_dict()[key] for key in titles]
        table.add_row(
            f"[bold]{name}" if name == "test pairs" else name,
            *("" if value is None else f"{100 * value:.2f}" for value in values),
        )
    console.print(table)


def _tested(data: DataSummary | None) -> str:
    """What training never saw: of a closed set the images, whose classes it knows."""
    known = data is not None and data.test is not None
    closed = known and set(data.test.class_names) & set(data.train.class_names)  # type: ignore[union-attr]
    return "test images" if closed else "test classes"


def verdict_lines(run: Run, start: Start) -> list[str]:
    """Whether training helped, by how much, what to try if it did not, and the next command to type."""
    result = run.result
    k, recall = next(iter(result.test.recall_at.items()))
    title, before = f"Recall@{k}", start.test.recall_at[k]
    of_pairs = [one.verification.verification.roc_auc for one in result.networks if one.verification]
    if start.verification is not None and of_pairs:
        title, before = "ROC AUC ", start.verification.verification.roc_auc
        recall = sum(of_pairs) / len(of_pairs)
    now = "trained" if result.epoch != 0 else "with the new head"
    lines = [f"{title}  {100 * before:.2f} {start.name}, {100 * recall:.2f} {now}: {result.verdict}"]
    if start.gain is not None:
        gain = start.gain
        lines[0] += (
            f" ({100 * gain.value:+.2f}, {gain.confidence:.0%} interval over {gain.classes} classes "
            f"{100 * gain.low:+.2f} to {100 * gain.high:+.2f})"
        )
    if start.verdict != "helped":
        lines.append(f"try       {_advice(run)}")
    lines.append(f"next      {_next_command(run)}")
    return lines


def _next_command(run: Run) -> str:
    """Search among the images where there is a folder of them; else a closer look."""
    root = run.terms.get("data", {}).get("root")
    if root and Path(root).is_dir():
        words = [
            "index",
            shown_path(_final(run) or run.path),
            root,
            "-o",
            f"{Path(root).resolve().name}.index",
        ]
    else:
        words = ["evaluate", shown_path(run.path)]
    return shlex.join(["nearkin", *words])


def _final(run: Run) -> Path | None:
    """The network that was trained on all classes afterwards, where there is one."""
    final = Run(run.path / FINAL, run.description)
    return final.path if final.network_file.exists() else None


def _advice(run: Run) -> str:
    """What is most likely to help, by what the run did not do yet."""
    network, training = run.terms.get("network", {}), run.terms.get("training", {})
    if run.result.directions:
        return (
            "more pairs, more epochs, another loss, or a language model that knows the subject (network.text)"
        )
    if run.result.epoch == 0:
        return "more classes or images; a smaller optimizer.lr; the last epoch (--set protocol.name=standard)"
    if network.get("weights") is None:
        return "a pretrained network (--weights FILE), more images per class, or more epochs"
    tips = ["another loss (nearkin tournament compares ten)", "a smaller optimizer.lr"]
    if network.get("cached_trunk"):
        tips.insert(0, "more of the network (an earlier network.cached_trunk, or --minutes with more time)")
    if training.get("ema") is None:
        tips.append("averaged weights (training.ema=0.99)")
    return "; ".join(tips)


def _setting(terms: dict[str, Any], key: str) -> Any:
    """A value under a dotted key."""
    found: Any = terms
    for part in key.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return found.get("name", "") if isinstance(found, dict) else found


def _print_pictures(pictures: list[Path]) -> None:
    for picture in pictures:
        console.print(Text(f"picture   {shown_path(picture)}"))


_SHOWN_SCORES = (
    "roc_auc",
    "equal_error_rate",
    "accuracy_at_threshold",
    "false_accept_rate",
    "false_reject_rate",
    "map_at_r",
    "r_precision",
    "mean_reciprocal_rank",
    "mean_average_precision",
    "nmi",
    "ami",
    "f1",
)


def print_examination(found: Examination, pictures: list[Path]) -> None:
    """Print what a closer look at a run found."""
    table = Table(box=None, pad_edge=False)
    for column in ("test classes", "%", "95% interval over classes"):
        table.add_column(column, justify="left" if column == "test classes" else "right")
    for name, interval in found.intervals.items():
        if name.startswith(("recall_at_", "cmc_at_", "tar_at_far_")) or name in _SHOWN_SCORES:
            spread = f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"
            table.add_row(name, f"{100 * interval.value:.2f}", spread)
    console.print(table)
    _print_reranked(found)
    details, names = found.diagnostics, found.samples.class_names
    space = details.space
    facts = [
        f"distance within classes {space.intra_class_distance:.3f}, between {space.inter_class_distance:.3f}",
        f"effective dimension {space.effective_dimension:.1f}",
        f"hubness {details.hubness.skewness:.2f} (skewness; above 2 is much)",
    ]
    console.print(f"[dim]{'; '.join(facts)}[/]")
    _print_list(
        "hardest classes",
        [f"{100 * one.recall_at_1:5.1f}%  {names[one.label]}" for one in details.classes[:5]],
    )
    _print_list(
        "most confused",
        [
            f"{100 * one.share:5.1f}%  {names[one.label]}  taken for  {names[one.taken_for]}"
            for one in details.confusions[:5]
        ],
    )
    _print_doubts(found.doubtful_labels)
    console.print(Text(f"details   {shown_path(found.file)}"))
    console.print(Text(f"doubtful  {shown_path(found.run.path / TABLE)}"))
    _print_pictures(pictures)


def _print_doubts(doubts: DoubtfulLabels) -> None:
    """The first of the doubtful labels, and how many there are in every split."""
    counts = ", ".join(f"{count:,} {split}" for split, count in doubts.by_split.items() if count)
    _print_list(
        f"doubtful labels ({counts}: no neighbour agrees)",
        [
            f"{100 * row['agreement']:5.1f}%  {row['sample']}  says {row['label']}, looks like "
            f"{row['suggested']} ({row['split']})"
            for row in itertools.islice(doubts.rows(), 5)
        ],
    )


def _print_reranked(found: Examination) -> None:
    """Recall@1 (or the first k) and MAP@R before and after every re-ranking."""
    if not found.reranked:
        return
    k = next(iter(found.opened.scores.recall_at))
    table = Table(box=None, pad_edge=False)
    table.add_column("re-ranking")
    titles = {f"recall_at_{k}": f"Recall@{k}", "map_at_r": "MAP@R"}
    for title in titles.values():
        table.add_column(f"{title} before", justify="right")
        table.add_column("after", justify="right")
        table.add_column("difference, 95% interval", justify="right")
    before = found.opened.scores.to_dict()
    for name, one in found.reranked.items():
        row = [name]
        for key in titles:
            change = one.differences[key]
            spread = f"{100 * change.difference:+.2f} ({100 * change.low:+.2f} to {100 * change.high:+.2f})"
            row += [f"{100 * before[key]:.2f}", f"{100 * one.scores.to_dict()[key]:.2f}", spread]
        table.add_row(*row)
    console.print(table)


def _print_list(title: str, lines: list[str]) -> None:
    if lines:
        console.print(f"[bold]{title}[/]")
        for line in lines:
            console.print(Text(f"  {line}"))


def print_losses() -> None:
    """One line per loss."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name in losses.names():
        table.add_row(name, losses.describe(name).summary)
    console.print(table)
    console.print("[dim]nearkin losses show NAME tells more[/]")


def print_loss(name: str) -> None:
    """All about one loss."""
    about = losses.describe(name)
    console.print(f"[bold cyan]{about.name}[/]  {about.summary}")
    console.print()
    console.print(Text(textwrap.indent(about.equation, "    ")))
    console.print()
    table = Table(box=None, pad_edge=False)
    for column in ("keyword", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for keyword, default in about.defaults.items():
        table.add_row(f"[bold]{keyword}", f"{default!r}", Text(about.arguments.get(keyword, "")))
    console.print(table)
    facts = [
        ("when to use", about.when_to_use),
        *([("relations to other losses", about.relations)] if about.relations else []),
        ("source", about.source),
        ("class", f"nearkin.losses.{about.class_name}"),
        ("proxies", "learnable, one or more per class" if about.needs_classes else "none"),
    ]
    console.print()
    for fact, text in facts:
        console.print(Text.assemble((f"{fact}: ", "bold"), text))


def print_data_sets() -> None:
    """One line per data set."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name in registry:
        table.add_row(name, (inspect.getdoc(registry.get(name)) or "").split("\n")[0])
    console.print(table)
    console.print("[dim]nearkin datasets show NAME writes a contact sheet[/]")


def print_data_set(data_set: DataSet, picture: Path) -> None:
    """What a data set holds."""
    table = Table(box=None, pad_edge=False)
    for column in ("split", "samples", "classes", "samples per class"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split in ("train", "validation", "test", "query", "gallery"):
        samples = getattr(data_set, split)
        if samples is not None:
            counts = samples.labels.bincount()
            spread = (
                f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
            )
            table.add_row(split, f"{len(samples):,}", f"{samples.num_classes:,}", spread)
    console.print(table)
    for note in data_set.notes:
        console.print(Text(f"note      {note}"))
    _print_pictures([picture])


_SHOWN_COPIES = 20


def print_copies(copies: Sequence[Copies]) -> None:
    """Images that occur more than once, the worst first, and how many of each kind there are."""
    for one in copies[:_SHOWN_COPIES]:
        console.print(Text(str(one)))
    if len(copies) > _SHOWN_COPIES:
        console.print(f"… and {len(copies) - _SHOWN_COPIES:,} more")
    counts = Counter(one.problem for one in copies)
    told = ", ".join(f"{count:,} {problem}" for problem, count in counts.items())
    occur = "1 picture occurs" if len(copies) == 1 else f"{len(copies):,} pictures occur"
    console.print(f"{occur} more than once" + (f": {told}" if told else ""))


def _look_at_readable(data_set: DataSet, bad: list[BadImage]) -> Look | None:
    """What the images that can be read are taken for, where there are some in every split."""
    try:
        readable = leave_out(data_set, bad)
    except ValueError:
        return None
    look = look_at(readable.train)
    if look is None:
        return None
    splits = _splits(readable).values()
    return replace(look, samples=sum(map(len, splits)), classes=sum(one.num_classes for one in splits))


def _splits(data_set: DataSet) -> dict[str, SampleSet]:
    """The splits that there are, by name; query and gallery are parts of the test split."""
    named = {"train": data_set.train, "validation": data_set.validation, "test": data_set.test}
    return {name: split for name, split in named.items() if split is not None}


def checked_images(data_set: DataSet, bad: list[BadImage], copies: Sequence[Copies]) -> dict[str, Any]:
    """What ``datasets check`` found, for programs: every copy, not the first ones."""
    look = _look_at_readable(data_set, bad)
    splits = {
        name: {"samples": len(split), "classes": split.num_classes}
        for name, split in _splits(data_set).items()
    }
    return {
        "splits": splits,
        "images": None if look is None else {**asdict(look), "kind": look.kind},
        "bad": [{"name": one.name, "path": str(one.path), "reason": one.reason} for one in bad],
        "copies": [{**asdict(one), "problem": one.problem} for one in copies],
        "notes": list(data_set.notes),
    }


def print_bad_images(data_set: DataSet, bad: list[BadImage]) -> None:
    """Every bad image with its reason, and how many there are."""
    for image in bad:
        console.print(Text(str(image)))
    total = sum(map(len, _splits(data_set).values()))
    advice = ": mend them, or train with --skip-bad, which leaves them out" if bad else ""
    if len(bad) == total:
        advice = ": a table's paths are relative to its folder, or to data.images_root"
    console.print(f"{len(bad):,} of {total:,} images cannot be read{advice}")
    look = _look_at_readable(data_set, bad)
    if look is not None:
        console.print(f"all splits together: {look}, taken for {look.kind}")
    for note in data_set.notes:
        console.print(Text(f"note: {note}"))
