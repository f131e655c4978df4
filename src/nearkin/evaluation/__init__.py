"""Embeddings and labels in, scores out."""

from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.retrieval import PerQuery, RetrievalScores, retrieval_scores

__all__ = ["PerQuery", "RetrievalScores", "nearest_neighbours", "retrieval_scores"]
