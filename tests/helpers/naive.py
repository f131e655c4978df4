"""Every loss of LOSSES.md once more, as loops over samples: slow, plain, and written from the equations.

``x`` is ``(B, D)`` float64, ``y`` a list of labels, ``w`` the proxies. Gradients come from autograd. Each
gives one part for each sample, ``(B,)``; the loss is their sum. ``counts[i]`` says how often anchor i counts.
"""

from __future__ import annotations

from math import inf, log, pi, radians, sin

import torch
from torch import Tensor


def unit(v: Tensor) -> Tensor:
    return v / v.norm()


def units(x: Tensor) -> list[Tensor]:
    return [unit(row) for row in x]


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).norm() if not torch.equal(a, b) else (a - b).sum() * 0


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum()


def angle_cosine(a: Tensor, b: Tensor) -> Tensor:
    if not a.any() or not b.any():
        return (a * b).sum() * 0
    return unit(a) @ unit(b)


def lse(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).logsumexp(0)


def log_one_plus(terms: list[Tensor]) -> Tensor:
    return lse([*terms, torch.zeros(())]) if terms else torch.zeros(())


Terms = list[tuple[int, Tensor]]
"""Terms of a sum with the anchor that each belongs to."""


def mean(terms: Terms, y: list[int], counts: list[float] | None) -> Tensor:
    """The mean of terms, each as often as its anchor counts, as the anchors' parts ``(B,)``."""
    counts = [1.0] * len(y) if counts is None else counts
    parts = [torch.zeros((), dtype=torch.float64)] * len(y)
    total = sum(counts[i] for i, _ in terms)
    for i, term in terms:
        if counts[i] > 0:
            parts[i] = parts[i] + counts[i] * term / total
    return torch.stack(parts)


def everywhere(term: Tensor | float, y: list[int]) -> Tensor:
    """What belongs to no sample, shared evenly."""
    return torch.ones(len(y), dtype=torch.float64) * term / len(y)


def positives_of(y: list[int], i: int) -> list[int]:
    return [j for j in range(len(y)) if j != i and y[j] == y[i]]


def negatives_of(y: list[int], i: int) -> list[int]:
    return [j for j in range(len(y)) if y[j] != y[i]]


def cosines(x: Tensor) -> list[list[Tensor]]:
    z = units(x)
    return [[a @ b for b in z] for a in z]


def all_triplets(y):
    return [(a, p, n) for a in range(len(y)) for p in positives_of(y, a) for n in negatives_of(y, a)]


def hard_triplets(S, y):
    return [
        (a, min(positives_of(y, a), key=lambda j: S[a][j]), max(negatives_of(y, a), key=lambda j: S[a][j]))
        for a in range(len(y))
        if positives_of(y, a) and negatives_of(y, a)
    ]


def semi_hard_triplets(S, y):
    triplets = []
    for a in range(len(y)):
        for p in positives_of(y, a):
            farther = [n for n in negatives_of(y, a) if S[a][n] < S[a][p]]
            if farther:
                triplets.append((a, p, max(farther, key=lambda n: S[a][n])))
    return triplets


def multi_similarity_pairs(S, y, epsilon):
    positives, negatives = [], []
    for i in range(len(y)):
        P, N = positives_of(y, i), negatives_of(y, i)
        lowest = min((S[i][p] for p in P), default=inf)
        highest = max((S[i][n] for n in N), default=-inf)
        positives.append([p for p in P if S[i][p] < highest + epsilon])
        negatives.append([n for n in N if S[i][n] > lowest - epsilon])
    return positives, negatives


def contrastive(x, y, *, margin=0.5, metric="cosine", counts=None):
    z = units(x)
    pulls, pushes = [], []
    for i in range(len(y)):
        for j in range(len(y)):
            if i == j:
                continue
            S, D = z[i] @ z[j], {"euclidean": distance, "squared_euclidean": squared_distance}.get(metric)
            if y[i] == y[j]:
                pulls.append((i, 1 - S if D is None else D(z[i], z[j])))
            else:
                term = S - margin if D is None else margin - D(z[i], z[j])
                if term > 0:
                    pushes.append((i, term))
    return mean(pulls, y, counts) + mean(pushes, y, counts)


def triplet(x, y, *, margin=0.1, metric="cosine", mining="semi_hard", counts=None):
    z, S = units(x), cosines(x)
    mined = {"all": lambda: all_triplets(y), "hard": lambda: hard_triplets(S, y)}.get(
        mining, lambda: semi_hard_triplets(S, y)
    )()
    terms = []
    for a, p, n in mined:
        if metric == "cosine":
            term = S[a][n] - S[a][p] + margin
        elif metric == "euclidean":
            term = distance(z[a], z[p]) - distance(z[a], z[n]) + margin
        else:
            term = (2 - 2 * S[a][p]) - (2 - 2 * S[a][n]) + margin
        if term > 0:
            terms.append((a, term))
    return mean(terms, y, counts)


def lifted_structure(
    x, y, *, margin=0.5, positive_scale=2.0, negative_scale=40.0, mining="hard", counts=None
):
    S = cosines(x)
    positives, negatives = multi_similarity_pairs(S, y, 0.1 if mining == "hard" else 10)
    terms = []
    for i in range(len(y)):
        if positives[i] and negatives[i]:
            far = lse([positive_scale * (margin - S[i][p]) for p in positives[i]]) / positive_scale
            near = lse([negative_scale * S[i][n] for n in negatives[i]]) / negative_scale
            terms.append((i, torch.relu(far + near)))
    return mean(terms, y, counts)


def npair(x, y, *, l2=0.02, pairs="all", counts=None):
    terms = []
    if pairs == "all":
        for i in range(len(y)):
            P, N = positives_of(y, i), negatives_of(y, i)
            if P and N:
                terms.append((i, log_one_plus([x[i] @ x[k] - x[i] @ x[j] for j in P for k in N])))
            else:
                terms.append((i, torch.zeros(())))
    else:
        members = {c: [i for i in range(len(y)) if y[i] == c] for c in y}
        couples = [m[:2] for m in members.values() if len(m) > 1]
        for a, p in couples:
            terms.append((a, log_one_plus([x[a] @ x[q] - x[a] @ x[p] for b, q in couples if b != a])))
    something = any(positives_of(y, i) and negatives_of(y, i) for i in range(len(y)))
    if pairs == "one_per_class":
        something = len(couples) > 1
    lengths = [(i, l2 * x[i].square().sum() * something) for i in range(len(y))]
    return mean(terms, y, counts) + mean(lengths, y, counts)


def margin_of_pairs(x, y, positives, negatives, beta, *, margin=0.2, nu=0.0, counts=None):
    z = units(x)
    terms, betas = [], []
    for side, pairs in ((1, positives), (-1, negatives)):
        for i, j in pairs:
            b = beta if beta.dim() == 0 else beta[y[i]]
            betas.append((i, b))
            term = margin + side * (distance(z[i], z[j]) - b)
            if term > 0:
                terms.append((i, term))
    return mean(terms, y, counts) + nu * mean(betas, y, counts)


def multi_similarity(x, y, *, alpha=2.0, beta=50.0, margin=0.5, epsilon=0.1, gamma=0.0, counts=None):
    z, S = units(x), cosines(x)
    positives, negatives = multi_similarity_pairs(S, y, epsilon)
    terms = []
    for i in range(len(y)):
        hardest = min(positives_of(y, i), key=lambda p: S[i][p], default=None)
        pull = log_one_plus([-alpha * (S[i][p] - margin) for p in positives[i]]) / alpha
        exponents = []
        for n in negatives[i]:
            turn = 0 if hardest is None else angle_cosine(z[n] - z[i], z[hardest] - z[i])
            exponents.append(beta * (S[i][n] - margin - gamma * turn))
        terms.append((i, pull + log_one_plus(exponents) / beta))
    return mean(terms, y, counts)


def nca(x, y, *, temperature=1.0, counts=None):
    z = units(x)
    terms = []
    for i in range(len(y)):
        if positives_of(y, i):
            near = {k: -(z[i] - z[k]).square().sum() / temperature for k in range(len(y)) if k != i}
            terms.append((i, lse(list(near.values())) - lse([near[p] for p in positives_of(y, i)])))
    return mean(terms, y, counts)


def direction_triplet(x, y, *, margin=0.1, gamma=0.3, counts=None):
    z = units(x)
    terms = []
    for a, p, n in all_triplets(y):
        D2 = (z[a] - z[p]).square().sum() - (z[a] - z[n]).square().sum()
        term = D2 + margin - gamma * angle_cosine(z[n] - z[a], z[p] - z[a])
        if term > 0:
            terms.append((a, term))
    return mean(terms, y, counts)


def cross_entropy(logits: list[Tensor], target: int) -> Tensor:
    return lse(logits) - logits[target]


def softmax(x, y, w, *, normalized=False, scale=16.0, counts=None):
    terms = []
    for i, t in enumerate(y):
        logits = [scale * (unit(x[i]) @ unit(c)) if normalized else x[i] @ c for c in w]
        terms.append((i, cross_entropy(logits, t)))
    return mean(terms, y, counts)


def proxy_nca(x, y, w, *, scale=9.0, gamma=0.0, counts=None):
    terms = []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        v = units(w)
        others = [
            -scale * (z - v[c]).square().sum() - gamma * angle_cosine(v[c] - z, v[t] - z)
            for c in range(len(w))
            if c != t
        ]
        terms.append((i, scale * (z - v[t]).square().sum() + lse(others)))
    return mean(terms, y, counts)


def proxy_nca_pp(x, y, w, *, temperature=1 / 9, counts=None):
    terms = []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        terms.append((i, cross_entropy([-(z - unit(c)).square().sum() / temperature for c in w], t)))
    return mean(terms, y, counts)


def arcface(x, y, w, *, margin_degrees=28.6, scale=64.0, counts=None):
    m, terms = radians(margin_degrees), []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        logits = [z @ unit(c) for c in w]
        theta = torch.acos(logits[t])
        logits[t] = torch.cos(theta + m) if theta <= pi - m else torch.cos(theta) - m * sin(m)
        terms.append((i, cross_entropy([scale * logit for logit in logits], t)))
    return mean(terms, y, counts)


def soft_triple(x, y, w, *, scale=20.0, gamma=0.1, margin=0.01, tau=0.2, proxies_per_class=10, counts=None):
    C, K = w.shape[:2]
    u = [units(centres) for centres in w]
    terms = []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        logits = []
        for c in range(C):
            s = torch.stack([centre @ z for centre in u[c]])
            S_c = (torch.softmax(s / gamma, 0) * s).sum()
            logits.append(scale * (S_c - (margin if c == t else 0)))
        terms.append((i, cross_entropy(logits, t)))
    spread = sum(
        (
            torch.sqrt(2 + 1e-5 - 2 * (u[c][s] @ u[c][t]))
            for c in range(C)
            for t in range(K)
            for s in range(t)
        ),
        torch.zeros(()),
    )
    return mean(terms, y, counts) + everywhere(tau * spread / (C * K * (K - 1)) if K > 1 else 0, y)


def shared_log_one_plus(terms: Terms, y: list[int], counts: list[float] | None) -> Tensor:
    """``log(1 + Σ eᵗ)``, each exponential as often as its sample counts, shared in proportion to them."""
    parts = [torch.zeros((), dtype=torch.float64)] * len(y)
    counts = [1.0] * len(y) if counts is None else counts
    weighty = [(i, term + log(counts[i])) for i, term in terms if counts[i] > 0]
    for i, term in weighty:
        share = (term - lse([other for _, other in weighty])).exp()
        parts[i] = parts[i] + share * log_one_plus([other for _, other in weighty])
    return torch.stack(parts)


def pull_of_proxies(z, y, v, alpha, margin, counts):
    present = {t for i, t in enumerate(y) if counts is None or counts[i] > 0}
    pull = torch.zeros(len(y), dtype=torch.float64)
    for c in present:
        own = [(i, -alpha * (z[i] @ v[c] - margin)) for i, t in enumerate(y) if t == c]
        pull = pull + shared_log_one_plus(own, y, counts) / len(present)
    return pull


def proxy_anchor(x, y, w, *, alpha=32.0, margin=0.1, counts=None):
    z, v = units(x), units(w)
    value = pull_of_proxies(z, y, v, alpha, margin, counts)
    for c in range(len(w)):
        others = [(i, alpha * (z[i] @ v[c] + margin)) for i, t in enumerate(y) if t != c]
        value = value + shared_log_one_plus(others, y, counts) / len(w)
    return value


def proxy_gml(x, y, w, *, proxies_per_class=12, ratio=0.05, regularization=0.3, counts=None):
    C, M = w.shape[:2]
    u = [units(proxies) for proxies in w]
    keep = max(M, round(ratio * C * M + 0.499999))
    terms = []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        s = {(c, k): u[c][k] @ z for c in range(C) for k in range(M)}
        others = sorted((ck for ck in s if ck[0] != t), key=lambda ck: -s[ck])
        chosen = [(t, k) for k in range(M)] + others[: keep - M]
        classes = sorted({c for c, _ in chosen})
        logits = [sum(s[ck] for ck in chosen if ck[0] == c) for c in classes]
        terms.append((i, cross_entropy(logits, classes.index(t))))
    rest = [
        cross_entropy([sum(u[c][k] @ u[d][m] for m in range(M)) for d in range(C)], c)
        for c in range(C)
        for k in range(M)
    ]
    return mean(terms, y, counts) + everywhere(regularization * sum(rest) / len(rest), y)


def proxy_repulsion(x, y, w, *, alpha=32.0, margin=0.1, through_samples=True, counts=None):
    z, v = units(x), units(w)
    times = [1.0] * len(y) if counts is None else counts
    push = torch.zeros(())
    for c in range(len(w)):
        exponents = []
        for d in range(len(w)):
            if d != c:
                R = v[c] @ v[d]
                if through_samples:
                    R = sum(n * (v[c] @ a) * (a @ v[d]) for n, a in zip(times, z, strict=True))
                exponents.append(alpha * (R + margin))
        push = push + log_one_plus(exponents) / len(w)
    return pull_of_proxies(z, y, v, alpha, margin, counts) + everywhere(push, y)
