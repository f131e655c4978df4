"""Embeddings and labels in, scores out."""

from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.retrieval import (
    PerQuery,
    RecallScores,
    RetrievalScores,
    recall_scores,
    retrieval_scores,
)

__all__ = [
    "PerQuery",
    "RecallScores",
    "RetrievalScores",
    "nearest_neighbours",
    "recall_scores",
    "retrieval_scores",
]
