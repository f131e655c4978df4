"""Pictures of what a loss does: forces on points, weights on pairs, and what the weights react to.

``draw_forces`` shows where each loss pushes anchor, positive and negative in one step, ``animate`` where that
leads, ``draw_weights`` what it pulls and pushes in a batch; ``measure_choice`` and ``draw_similarities`` tell
which similarities decide that. A loss is given as a :class:`LossChoice`: any registered one with any
hyperparameters.
"""

from nearkin.explain.animation import Trajectory, animate, descend
from nearkin.explain.choice import LossChoice, every_loss
from nearkin.explain.forces import Forces, draw_forces, forces
from nearkin.explain.layouts import Layout
from nearkin.explain.pair_weighting import similarity_weights
from nearkin.explain.similarities import (
    PRINTED,
    Measurement,
    Reaction,
    differences,
    draw_similarities,
    measure_choice,
    reactions,
)
from nearkin.explain.weights import (
    Batch,
    Curve,
    Weights,
    draw_balanced,
    draw_weights,
    measure_weights,
    structured_batch,
    weight_curve,
)

__all__ = [
    "PRINTED",
    "Batch",
    "Curve",
    "Forces",
    "Layout",
    "LossChoice",
    "Measurement",
    "Reaction",
    "Trajectory",
    "Weights",
    "animate",
    "descend",
    "differences",
    "draw_balanced",
    "draw_forces",
    "draw_similarities",
    "draw_weights",
    "every_loss",
    "forces",
    "measure_choice",
    "measure_weights",
    "reactions",
    "similarity_weights",
    "structured_batch",
    "weight_curve",
]
