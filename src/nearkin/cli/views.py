"""The pictures of a run, drawn with a word about each while it takes its time."""

from __future__ import annotations

from pathlib import Path

from nearkin.pictures.run import embedding_map, fold_curves, learning_curve, retrieval_gallery
from nearkin.protocols import Finished, reopened, selects_on_test
from nearkin.training import Observer, Run


def draw_run(finished: Finished, observer: Observer) -> list[Path]:
    """Draw the pictures of a run into its directory.

    Those of a run that was finished before are kept; what is missing, because the run was killed while it
    drew, is drawn now.
    """
    run = finished.run
    curve, gallery, landscape = (run.path / f"{name}.png" for name in ("learning_curve", "gallery", "map"))
    if finished.opened is None and not (gallery.exists() and landscape.exists()):
        finished = reopened(finished, observer)
    opened = finished.opened
    if opened is not None:
        observer.stage("drawing the pictures")
        _draw_curve(finished, curve)
        retrieval_gallery(
            opened.queries,
            opened.query_embeddings,
            gallery,
            gallery=opened.gallery,
            gallery_embeddings=opened.gallery_embeddings,
        )
        embedding_map(opened.queries, opened.query_embeddings, landscape)
        observer.end()
    return [picture for picture in (curve, gallery, landscape) if picture.exists()]


def _draw_curve(finished: Finished, path: Path) -> None:
    run, result = finished.run, finished.result
    title = f"{run.recipe.loss.name} on {run.recipe.data.name}, {run.recipe.network.name}"
    if "folds" in result:
        fold_curves(
            [Run.existing(run.path / fold["run"]).metrics() for fold in result["folds"]],
            path,
            title=title,
            chosen_epochs=[fold["selection"]["epoch"] for fold in result["folds"]],
        )
        return
    learning_curve(
        run.metrics(),
        path,
        title=title,
        chosen_epoch=result["selection"]["epoch"],
        scored_on="TEST classes" if selects_on_test(run.recipe) else "validation classes",
    )
