"""The pictures of a run, drawn with a word about each while it takes its time."""

from __future__ import annotations

from pathlib import Path

from nearkin.protocols import Finished, reopened
from nearkin.training import Observer
from nearkin.training.pictures import embedding_map, learning_curve, retrieval_gallery


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
        recipe = run.recipe
        learning_curve(
            run.metrics(),
            curve,
            title=f"{recipe.loss.name} on {recipe.data.name}, {recipe.network.name}",
            chosen_epoch=finished.result["selection"]["epoch"],
        )
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
