"""Embeddings and labels in, scores out."""
