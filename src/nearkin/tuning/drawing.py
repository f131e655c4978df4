"""The pictures of a search, drawn into its directory."""

from __future__ import annotations

from pathlib import Path

from nearkin.losses import Range
from nearkin.pictures.search import Scale, SearchHistory, Trial, draw_search
from nearkin.tuning.search import Search
from nearkin.tuning.strategy import importances


def draw(search: Search) -> list[Path]:
    """Draw the pictures of a search into its directory: history, importance and slices."""
    trials = [
        Trial(record.number, record.values, record.score, done=record.state == "done")
        for record in search.records()
        if record.score is not None and record.state != "failed"
    ]
    scales: dict[str, Scale] = {
        name: ("log" if values.log else "linear") if isinstance(values, Range) else "choice"
        for name, values in search.plan.space.items()
    }
    with search.study() as study:
        shares = importances(study)
    by_map = any(record.metric == "map_at_r" for record in search.records())
    score = "MAP@R" if by_map else f"Recall@{search.plan.recipe.evaluation.recall_at[0]}"
    score_name = f"{score} on validation classes"
    return draw_search(SearchHistory(trials, scales, score_name, shares), search.path)
