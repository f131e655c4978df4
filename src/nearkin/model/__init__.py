"""What a training leaves and everybody uses: a network, how it sees samples, and what it was made from."""

from nearkin.evaluation import Threshold
from nearkin.model.decision import Decision
from nearkin.model.exporting import Comparison, Export, ExportError
from nearkin.model.files import describe, is_model, read_embedder
from nearkin.model.model import Model
from nearkin.model.pairs import PairsReport, PairTable, verify_pairs
from nearkin.model.vector_files import VectorFile, write_vectors

__all__ = [
    "Comparison",
    "Decision",
    "Export",
    "ExportError",
    "Model",
    "PairTable",
    "PairsReport",
    "Threshold",
    "VectorFile",
    "describe",
    "is_model",
    "read_embedder",
    "verify_pairs",
    "write_vectors",
]
