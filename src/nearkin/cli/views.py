"""The pictures of a run, drawn with a word about each while it takes its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearkin.observer import Observer
from nearkin.pictures.run import embedding_map, fold_curves, learning_curve, retrieval_gallery
from nearkin.protocols import registry as protocols
from nearkin.protocols.doubtful_labels import SHEET
from nearkin.protocols.examination import Examination, open_again
from nearkin.recipe.reopening import data_of, networks_of
from nearkin.training import Run, TestEmbeddings


def draw_run(run: Run, observer: Observer, opened: TestEmbeddings | None = None) -> list[Path]:
    """Draw the pictures of a finished run into its directory.

    Those of a run that was finished before are kept; what is missing, because the run was killed while it
    drew, is drawn now. A picture that cannot be drawn is warned about, and stops nothing.

    Args:
        run: A finished run.
        observer: Hears what is being done.
        opened: Its test samples and embeddings, where they are at hand.
    """
    curve, gallery, landscape = (run.path / f"{name}.png" for name in ("learning_curve", "gallery", "map"))
    opened = opened or run.result.opened
    try:
        if opened is None and not (gallery.exists() and landscape.exists()):
            opened = _opened_again(run, observer)
        if opened is not None:
            observer.stage("drawing the pictures")
            _draw(curve, observer, lambda: _draw_curve(run, curve))
            _draw(gallery, observer, lambda: _draw_gallery(opened, gallery))
            _draw(
                landscape, observer, lambda: embedding_map(opened.queries, opened.query_embeddings, landscape)
            )
    finally:
        observer.end()
    return [picture for picture in (curve, gallery, landscape) if picture.exists()]


def draw_doubtful_labels(found: Examination, observer: Observer) -> list[Path]:
    """Write the contact sheet of doubtful labels into a run's directory, where there are any.

    Args:
        found: What a closer look at the run found.
        observer: Hears what is being done.
    """
    path = found.run.path / SHEET
    path.unlink(missing_ok=True)  # of labels that were mended since
    if not len(found.doubtful_labels):
        return []
    observer.stage("drawing doubtful labels")
    title = f"Doubtful labels of {found.run.path.resolve().name}"
    try:
        _draw(path, observer, lambda: found.doubtful_labels.write_sheet(path, title=title))
    finally:
        observer.end()
    return [path] if path.exists() else []


def _opened_again(run: Run, observer: Observer) -> TestEmbeddings | None:
    try:
        data = data_of(run, observer=observer)
        return open_again(networks_of(run), data, tuple(run.result.test.recall_at), observer)
    except (ValueError, OSError) as error:
        observer.warning(f"the pictures that are missing cannot be drawn: {error}")
        return None


def _draw(picture: Path, observer: Observer, draw: Callable[[], Any]) -> None:
    """Draw one picture; samples may be of any kind, and a finished run is worth more than a picture."""
    try:
        draw()
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        observer.warning(f"{picture.name} cannot be drawn: {error}")


def _draw_gallery(opened: TestEmbeddings, path: Path) -> None:
    retrieval_gallery(
        opened.queries,
        opened.query_embeddings,
        path,
        gallery=opened.gallery,
        gallery_embeddings=opened.gallery_embeddings,
    )


def _draw_curve(run: Run, path: Path) -> None:
    result = run.result
    title = "{} on {}, {}".format(
        *(run.terms.get(key, {}).get("name") for key in ("loss", "data", "network"))
    )
    if len(result.networks) > 1:
        fold_curves(
            [Run.existing(run.path / one.run).metrics() for one in result.networks],
            path,
            title=title,
            chosen_epochs=[one.epoch or 0 for one in result.networks],
        )
        return
    learning_curve(
        run.selection_metrics(),
        path,
        title=title,
        chosen_epoch=result.epoch or 0,
        scored_on="TEST classes" if chosen_on_test(run) else "validation classes",
    )


def chosen_on_test(run: Run) -> bool:
    """Whether the test classes chose the epoch of a run, so that its score is too good."""
    name = run.terms.get("protocol", {}).get("name", "")
    return name in protocols and bool(getattr(protocols.get(name), "test_chooses_epoch", False))
