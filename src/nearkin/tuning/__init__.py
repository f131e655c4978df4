"""Hyperparameter search on validation classes."""
