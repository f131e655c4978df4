"""k-means in torch: seeded, with restarts, never more than a chunk of distances in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.evaluation.similarity import row_chunks

# At most this many passes over the points choose the first centres.
ROUNDS = 512


@dataclass(frozen=True)
class Clusters:
    """The best of several runs.

    Attributes:
        assignment: ``(N,)`` the cluster of every point.
        centres: ``(K, D)``.
        inertia: sum of squared distances to the nearest centre.
    """

    assignment: Tensor
    centres: Tensor
    inertia: float


@torch.no_grad()
def kmeans(
    points: Tensor,
    clusters: int,
    *,
    seed: int = 0,
    restarts: int = 3,
    iterations: int = 100,
    start: Tensor | None = None,
) -> Clusters:
    """Lloyd's algorithm from k-means++ starts (Arthur and Vassilvitskii, 2007, SODA); the best run counts.

    A cluster that loses all its points moves to the point farthest from its centre.

    Args:
        points: ``(N, D)`` floats.
        clusters: K, at most N.
        seed: of every random choice; the same seed gives the same clusters.
        restarts: independent runs, of which the one with the lowest inertia is returned.
        iterations: at most this many rounds per run; a run ends earlier when no point moves.
        start: ``(K, D)`` centres to begin with, in a single run, in place of those of k-means++.

    >>> found = kmeans(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2)
    >>> found.assignment[0] == found.assignment[1], found.assignment[0] == found.assignment[2]
    (tensor(True), tensor(False))
    """
    if not 1 <= clusters <= len(points):
        raise ValueError(f"clusters={clusters} but there are {len(points)} points")
    if start is not None and start.shape != (clusters, points.shape[1]):
        raise ValueError(f"start has shape {tuple(start.shape)}, not ({clusters}, {points.shape[1]})")
    if restarts < 1 or iterations < 1:
        raise ValueError(f"restarts={restarts} and iterations={iterations} must be at least one")
    # The generator lives on the CPU so that a seed means the same on every device.
    generator = torch.Generator().manual_seed(seed)
    # Distances do not change with the origin, and short vectors keep the digits.
    centre = points.mean(dim=0)
    centred = points - centre
    with torch.autocast(points.device.type, enabled=False):
        if start is not None:
            starts = [start.to(points) - centre]
        else:
            starts = [_plus_plus(centred, clusters, generator) for _ in range(restarts)]
        runs = [_run(centred, first, iterations) for first in starts]
    best = min(runs, key=lambda run: run.inertia)
    return Clusters(best.assignment, best.centres + centre, best.inertia)


def _plus_plus(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Centres drawn among the points with probability proportional to their squared distance so far.

    One centre per round, the best of a few draws; with very many clusters several per round, so that the
    number of passes over the points stays bounded.
    """
    per_round = math.ceil(clusters / ROUNDS)
    draws = 2 + int(math.log(clusters)) if per_round == 1 else per_round
    chosen = torch.randint(len(points), (1,), generator=generator).to(points.device)
    squares = points.square().sum(dim=1)
    nearest = _squared_distances(points, squares, chosen).squeeze(1)
    while len(chosen) < clusters:
        drawn = _draw(nearest, draws, generator)
        candidates = torch.minimum(_squared_distances(points, squares, drawn), nearest[:, None])
        if per_round == 1:
            best = candidates.sum(dim=0).argmin()
            drawn, candidates = drawn[best, None], candidates[:, best, None]
        chosen = torch.cat([chosen, drawn])
        nearest = candidates.amin(dim=1)
    return points[chosen[:clusters]]


def _squared_distances(points: Tensor, squares: Tensor, chosen: Tensor) -> Tensor:
    """From every point to the chosen ones; ``squares`` are the squared lengths of all points."""
    lengths = squares[:, None] + squares[chosen]
    return torch.addmm(lengths, points, points[chosen].T, alpha=-2).clamp_(min=0)


def _draw(weights: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    # multinomial knows neither more than 2²⁴ weights nor weights that are all zero; a running sum does.
    running = weights.double().cumsum(0) if weights.device.type != "mps" else weights.cumsum(0)
    level = torch.rand(draws, generator=generator).to(running) * running[-1]
    return torch.searchsorted(running, level, right=True).clamp(max=len(weights) - 1)


def _run(points: Tensor, centres: Tensor, iterations: int) -> Clusters:
    squares = points.square().sum(dim=1)
    assignment, distance = _assign(points, squares, centres)
    for _ in range(iterations):
        centres = _means(points, assignment, distance, centres)
        previous = assignment
        assignment, distance = _assign(points, squares, centres)
        if torch.equal(assignment, previous):
            break
    return Clusters(assignment, centres, float(distance.sum()))


def _assign(points: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of every point, and the squared distance to it."""
    half_squares = centres.square().sum(dim=1) / 2
    assignment = torch.empty(len(points), dtype=torch.long, device=points.device)
    closeness = points.new_empty(len(points))
    for rows in row_chunks(len(points), len(centres)):
        closeness[rows], assignment[rows] = torch.addmm(-half_squares, points[rows], centres.T).max(dim=1)
    return assignment, (squares - 2 * closeness).clamp(min=0)


def _means(points: Tensor, assignment: Tensor, distance: Tensor, centres: Tensor) -> Tensor:
    """The mean of every cluster; each empty one takes a point that lies far from its centre."""
    sizes = torch.bincount(assignment, minlength=len(centres))
    means = torch.zeros_like(centres).index_add_(0, assignment, points)
    means /= sizes.clamp(min=1)[:, None]
    empty = (sizes == 0).nonzero().squeeze(1)
    means[empty] = points[distance.topk(len(empty)).indices]
    return means
