"""Pictures of what a loss does: forces on points, weights on pairs, and what the weights react to.

``draw_edges`` shows who pulls and pushes whom in a batch, ``draw_forces`` where each loss pushes anchor,
positive and negative in one step, ``animate`` where that leads, ``draw_weights`` how that depends on
similarity; ``measure_choice`` and ``draw_similarities`` tell which similarities decide it. A loss is given as
a :class:`LossChoice`: any registered one with any hyperparameters. ``draw_xor`` and ``draw_perceptron`` show
where neural networks began.
"""

from nearkin.explain.animation import Trajectory, animate, descend
from nearkin.explain.choice import LossChoice, every_loss
from nearkin.explain.edges import FIGURES, Edges, draw_edges, figure_batch, measure_edges
from nearkin.explain.forces import Forces, draw_forces, forces
from nearkin.explain.layouts import Layout
from nearkin.explain.pair_weighting import similarity_weights
from nearkin.explain.perceptron import draw_perceptron, draw_xor
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
    "FIGURES",
    "PRINTED",
    "Batch",
    "Curve",
    "Edges",
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
    "draw_edges",
    "draw_forces",
    "draw_perceptron",
    "draw_similarities",
    "draw_weights",
    "draw_xor",
    "every_loss",
    "figure_batch",
    "forces",
    "measure_choice",
    "measure_edges",
    "measure_weights",
    "reactions",
    "similarity_weights",
    "structured_batch",
    "weight_curve",
]
