"""Embeddings and labels in, scores out."""

from nearkin.evaluation.clustering import ClusteringScores, clustering_scores
from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.reidentification import ReidentificationScores, reidentification_scores
from nearkin.evaluation.retrieval import (
    PerQuery,
    RecallScores,
    RetrievalScores,
    recall_scores,
    retrieval_scores,
)
from nearkin.evaluation.verification import VerificationScores, verification_scores

__all__ = [
    "ClusteringScores",
    "PerQuery",
    "RecallScores",
    "ReidentificationScores",
    "RetrievalScores",
    "VerificationScores",
    "clustering_scores",
    "nearest_neighbours",
    "recall_scores",
    "reidentification_scores",
    "retrieval_scores",
    "verification_scores",
]
