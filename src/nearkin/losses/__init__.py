"""Embeddings and labels in, one number out. One file per loss."""
