"""Deep metric learning: learn embeddings whose nearest neighbours are kin."""

__version__ = "0.1.0"
