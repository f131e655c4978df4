"""Hyperparameter search on validation classes."""

from nearkin.extras import require

require("optuna", extra="tune", purpose="hyperparameter search")
