"""Embeddings and labels in, scores out."""

from nearkin.evaluation.clustering import ClusteringScores, clustering_scores
from nearkin.evaluation.diagnostics import Diagnostics, diagnostics
from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.pair_scores import (
    PairScores,
    choose_threshold_on_pairs,
    pair_intervals,
    pair_scores,
    pair_similarities,
)
from nearkin.evaluation.processes import retrieval_scores_by_processes
from nearkin.evaluation.reidentification import (
    MatchesPerQuery,
    ReidentificationScores,
    reidentification_scores,
)
from nearkin.evaluation.reranking import (
    Whitening,
    k_reciprocal,
    query_expansion,
    reranked_scores,
)
from nearkin.evaluation.retrieval import (
    PerQuery,
    RecallScores,
    RetrievalScores,
    recall_scores,
    retrieval_scores,
)
from nearkin.evaluation.spread import (
    Interval,
    PairedDifference,
    bootstrap_intervals,
    clustering_intervals,
    exchange_test,
    mean_intervals,
    paired_differences,
    verification_intervals,
)
from nearkin.evaluation.thresholds import Threshold, TooFewPairsError, choose_threshold, rates_at_threshold
from nearkin.evaluation.verification import PerPair, VerificationScores, verification_scores

__all__ = [
    "ClusteringScores",
    "Diagnostics",
    "Interval",
    "MatchesPerQuery",
    "PairScores",
    "PairedDifference",
    "PerPair",
    "PerQuery",
    "RecallScores",
    "ReidentificationScores",
    "RetrievalScores",
    "Threshold",
    "TooFewPairsError",
    "VerificationScores",
    "Whitening",
    "bootstrap_intervals",
    "choose_threshold",
    "choose_threshold_on_pairs",
    "clustering_intervals",
    "clustering_scores",
    "diagnostics",
    "exchange_test",
    "k_reciprocal",
    "mean_intervals",
    "nearest_neighbours",
    "pair_intervals",
    "pair_scores",
    "pair_similarities",
    "paired_differences",
    "query_expansion",
    "rates_at_threshold",
    "recall_scores",
    "reidentification_scores",
    "reranked_scores",
    "retrieval_scores",
    "retrieval_scores_by_processes",
    "verification_intervals",
    "verification_scores",
]
