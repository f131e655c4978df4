"""``nearkin index``: a model and a folder become an index, and an index grows, shrinks and is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.commands import EmbeddingJobsOption, EmbeddingRayOption
from nearkin.cli.index_display import JsonOption

if TYPE_CHECKING:
    from nearkin.index import Added, Index, IndexEvaluation

_LISTS = ("outliers", "label_errors", "representatives")
_EXPLAINED = 5  # files that could not be read


def index(
    source: Annotated[
        str, typer.Argument(metavar="MODEL|INDEX", help="A finished run, a saved model, or an index.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Images to add; folders in it are labels. Or a .tar or .parquet file of images. None: "
            "look at INDEX.",
        ),
    ] = None,
    *,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="The index's folder; by default FOLDER.index, here. Or postgresql://host/database/name, or "
            "milvus://host/name.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="What a search reads: float32, or int8, which is a quarter (in PostgreSQL float16, which is "
            "half); when it is made."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Put before every name, to tell files of several folders apart.")
    ] = "",
    prune: Annotated[bool, typer.Option("--prune", help="Remove items whose files are gone.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and add what appears or changes in the folder.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    show: Annotated[
        str | None,
        typer.Option("--list", metavar="WHAT", help="List outliers, label_errors or representatives."),
    ] = None,
    jobs: EmbeddingJobsOption = None,
    ray: EmbeddingRayOption = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure queries per second and what searches miss.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare every vector with its checksum; exit code 1 if one differs."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Make a folder of images searchable, or look at what an index holds.

    The same command goes on where it was stopped, and adds what is new or changed since; nothing is embedded
    twice.
    """
    from nearkin.cli.app import stopped
    from nearkin.cli.index_display import make_graph, progress_of
    from nearkin.registry import nearest_name

    if show is not None and show not in _LISTS:
        raise ValueError(f"--list {show[:80]}: {nearest_name(show, list(_LISTS))}")
    with _opened(source, folder, output, precision) as opened:
        added: Added | None = None
        if folder is not None:
            try:
                with progress_of("embedding what is new", on_stderr=json) as display:
                    added = opened.add(
                        folder, prefix=prefix, progress=display.progress, processes=jobs, ray=ray
                    )
            except KeyboardInterrupt:
                raise stopped() from None
        missing = opened.missing()
        if evaluate:
            make_graph(opened, on_stderr=json)
        report = _Report(
            opened,
            added,
            missing=len(missing),
            pruned=opened.remove([item.id for item in missing]) if prune and missing else 0,
            damaged=opened.damaged() if check else None,
            show=show,
            listed=getattr(opened, show)() if show else [],
            evaluation=opened.evaluate() if evaluate else None,
        )
        report.print(json=json)
        if watch:
            _watch(opened, folder, every, prefix)
        if report.damaged:
            raise typer.Exit(1)


def _opened(source: str, folder: Path | None, output: str | None, precision: str | None) -> Index:
    from nearkin import api
    from nearkin.data.packed import is_packed
    from nearkin.index import Index
    from nearkin.index.stores import store_exists

    if store_exists(source):
        if output is not None or precision is not None:
            option = "--output" if output is not None else "--precision"
            raise ValueError(f"{option} is for a new index, and {source} is one: leave it out")
        return Index.open(source)
    if folder is None:
        raise ValueError(f"{source} is no index: give a FOLDER of images to make one of, or an index")
    if not folder.is_dir() and not (is_packed(folder) and folder.is_file()):
        raise FileNotFoundError(f"{folder} is not a folder")
    path = output or f"{folder.absolute().name}.index"
    wanted: Any = precision or "float32"
    return Index.create(api.load(source), path, precision=wanted)


@dataclass(frozen=True)
class _Report:
    """What was done to an index, and what was found in it."""

    opened: Index
    added: Added | None
    missing: int
    pruned: int
    damaged: list[str] | None
    show: str | None
    listed: list[Any]
    evaluation: IndexEvaluation | None

    def print(self, *, json: bool) -> None:
        """As lines, or as JSON."""
        if json:
            from nearkin.cli.index_display import print_json

            print_json(self.to_dict())
            return
        if self.added is not None:
            _say_added(self.added)
        if self.pruned:
            typer.echo(f"removed   {self.pruned:,} items whose files are gone")
        elif self.missing:
            typer.echo(f"missing   the files of {self.missing:,} items are gone; --prune removes these items")
        opened = self.opened
        counts = f"{len(opened):,} items, {len(opened.labels()):,} labels, {opened.precision}"
        typer.echo(f"index     {opened.path}: {counts}")
        typer.echo(f"model     {opened.store.about['model']}, fingerprint {opened.fingerprint[:12]}")
        if self.damaged is not None:
            names = ": " + ", ".join(self.damaged[:_EXPLAINED]) if self.damaged else ""
            typer.echo(f"check     {len(self.damaged):,} vectors are damaged{names}")
        _say_listed(self.listed)
        if self.evaluation is not None:
            _say_evaluation(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        from dataclasses import asdict

        opened = self.opened
        told: dict[str, Any] = {
            "path": str(opened.path),
            "items": len(opened),
            "labels": opened.labels(),
            "model": opened.store.about["model"],
            "fingerprint": opened.fingerprint,
            "precision": opened.precision,
            "missing": self.missing,
            "pruned": self.pruned,
        }
        told |= {} if self.added is None else {"added": asdict(self.added)}
        told |= {} if self.damaged is None else {"damaged": self.damaged}
        told |= {} if self.show is None else {self.show: [one.to_dict() for one in self.listed]}
        told |= {} if self.evaluation is None else {"evaluation": self.evaluation.to_dict()}
        return told


def _say_added(added: Added) -> None:
    typer.echo(f"added     {added.new:,} new, {added.changed:,} changed, {added.known:,} known already")
    for name, reason in added.skipped[:_EXPLAINED]:
        typer.echo(f"skipped   {name}: {reason}")
    if len(added.skipped) > _EXPLAINED:
        typer.echo(f"skipped   and {len(added.skipped) - _EXPLAINED:,} more files that cannot be read")


def _say_listed(listed: list[Any]) -> None:
    for one in listed:
        known = one.to_dict()
        facts = [f"{known[key]:.3f}" for key in ("similarity", "agreement") if key in known]
        facts += [f"{known['label']} → {known['suggested']}"] if "suggested" in known else []
        typer.echo("  ".join([*facts, known["name"]]))


def _say_evaluation(found: IndexEvaluation) -> None:
    for name in ("exact", "float32", "approximate"):
        quality = getattr(found, name)
        if quality is not None:
            speed = f"{quality.queries_per_second:,.0f} queries per second"
            hit = "" if quality.recall_at_1 is None else f", Recall@1 {quality.recall_at_1:.4f}"
            typer.echo(f"{name:12}{speed}, finds {quality.recall:.2%} of the {found.k} nearest{hit}")


def _watch(opened: Index, folder: Path | None, every: float, prefix: str) -> None:
    if folder is None:
        raise ValueError("--watch needs a FOLDER to look at")
    typer.echo(f"watching  {folder}, every {every:g} s; Ctrl-C ends it")
    try:
        for added in opened.watch(folder, every=every, prefix=prefix):
            if added.new or added.changed or added.skipped:
                _say_added(added)
    except KeyboardInterrupt:
        typer.echo(f"index     {opened.path}: {len(opened):,} items")
