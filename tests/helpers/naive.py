"""Every loss of LOSSES.md once more, as loops over samples: slow, plain, and written from the equations.

``x`` is ``(B, D)`` float64, ``y`` a list of labels, ``w`` the proxies. Gradients come from autograd. Each
gives one part for each sample, ``(B,)``; the loss is their sum. ``counts[i]`` says how often anchor i counts.
"""

from __future__ import annotations

from math import cos, inf, log, pi, radians, sin, tan

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
    near = nearness(x, metric)
    best, boundary = (1, margin) if metric == "cosine" else (0, -margin)
    pulls, pushes = [], []
    for i in range(len(y)):
        pulls += [(i, best - near[i][p]) for p in positives_of(y, i)]
        pushes += [(i, near[i][n] - boundary) for n in negatives_of(y, i) if near[i][n] > boundary]
    return mean(pulls, y, counts) + mean(pushes, y, counts)


def triplet(x, y, *, margin=0.1, metric="cosine", mining="semi_hard", swap=False, smooth=False, counts=None):
    near = nearness(x, metric)
    # Mining looks at cosines where the metric is a function of them: copies of an image then tie as they do.
    S = near if metric in ("euclidean_raw", "hyperbolic", "signal_to_noise") else cosines(x)
    mined = {"all": lambda: all_triplets(y), "hard": lambda: hard_triplets(S, y)}.get(
        mining, lambda: semi_hard_triplets(S, y)
    )()
    terms = []
    for a, p, n in mined:
        nearest = torch.maximum(near[a][n], near[p][n]) if swap else near[a][n]
        term = nearest - near[a][p] + margin
        if smooth:
            terms.append((a, log_one_plus([term])))
        elif term > 0:
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


def arc(theta, m):
    return torch.cos(theta + m) if theta <= pi - m else torch.cos(theta) - m * sin(m)


def cosface(x, y, w, *, margin=0.35, scale=64.0, counts=None):
    terms = []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        logits = [scale * (z @ unit(c) - (margin if k == t else 0)) for k, c in enumerate(w)]
        terms.append((i, cross_entropy(logits, t)))
    return mean(terms, y, counts)


def sub_center_arcface(x, y, w, *, margin_degrees=28.6, scale=64.0, proxies_per_class=3, counts=None):
    terms = []
    for i, (z, t) in enumerate(zip(units(x), y, strict=True)):
        cosines = [max(z @ unit(centre) for centre in centres) for centres in w]
        cosines[t] = arc(torch.acos(cosines[t]), radians(margin_degrees))
        terms.append((i, cross_entropy([scale * cosine for cosine in cosines], t)))
    return mean(terms, y, counts)


def curricularface(x, y, w, *, margin_degrees=28.6, scale=64.0, counts=None, t=0.0):
    terms = []
    for i, (z, own) in enumerate(zip(units(x), y, strict=True)):
        cosines = [z @ unit(c) for c in w]
        moved = arc(torch.acos(cosines[own]), radians(margin_degrees))
        cosines = [c * (t + c) if c > moved else c for c in cosines]
        cosines[own] = moved
        terms.append((i, cross_entropy([scale * cosine for cosine in cosines], own)))
    return mean(terms, y, counts)


def adaface(x, y, w, *, margin=0.4, scale=64.0, concentration=0.333, counts=None, mu=20.0, sigma=100.0):
    terms = []
    for i, (row, t) in enumerate(zip(x, y, strict=True)):
        quality = concentration * (row.detach().norm().item() - mu) / (sigma + 1e-3)
        quality = min(1.0, max(-1.0, quality))
        logits = [scale * (unit(row) @ unit(c)) for c in w]
        theta = torch.clamp(torch.acos(unit(row) @ unit(w[t])) - margin * quality, 0, pi)
        logits[t] = scale * (torch.cos(theta) - (margin + margin * quality))
        terms.append((i, cross_entropy(logits, t)))
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


def proxy_repulsion(x, y, w, *, alpha=32.0, margin=0.1, through_samples=True, relations=0.0, counts=None):
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
    value = pull_of_proxies(z, y, v, alpha, margin, counts) + everywhere(push, y)
    return value + relations * multi_similarity(x, y, counts=counts) if relations else value


def poincare_distance(a: Tensor, b: Tensor, c: float = 0.1, clip: float = 2.3) -> Tensor:
    """Rows are cut, mapped into the ball by the exponential map at 0, and measured there, as printed."""

    def in_ball(v: Tensor) -> Tensor:
        length = v.norm()
        v = v * clip / length if length > clip else v
        return torch.tanh(c**0.5 * v.norm()) * v / (c**0.5 * v.norm())

    if torch.equal(a, b):
        return (a - b).sum() * 0
    p, q = in_ball(a), in_ball(b)
    apart = 2 * c * (p - q).square().sum() / ((1 - c * p.square().sum()) * (1 - c * q.square().sum()))
    return torch.acosh(1 + apart) / c**0.5


def signal_to_noise(a: Tensor, b: Tensor) -> Tensor:
    return torch.var(unit(a) - unit(b)) / torch.var(unit(a))


DISTANCES = {
    "cosine": lambda a, b: -(unit(a) @ unit(b)),
    "squared_euclidean": lambda a, b: squared_distance(unit(a), unit(b)),
    "euclidean": lambda a, b: distance(unit(a), unit(b)),
    "euclidean_raw": squared_distance,
    "hyperbolic": poincare_distance,
    "signal_to_noise": signal_to_noise,
}
"""Of two raw embeddings; the cosine counts as a distance less 1."""


def nearness(x: Tensor, metric: str) -> list[list[Tensor]]:
    return [[-DISTANCES[metric](a, b) for b in x] for a in x]


def step(t: Tensor, temperature: float) -> Tensor:
    return 1 / (1 + torch.exp(torch.clamp(-t / temperature, -50, 50)))


def ranks_of(S, y, i, p, above, below):
    """R⁺ and R⁻ of positive p for query i, with one step over positives and one over negatives."""
    nothing = torch.zeros((), dtype=torch.float64)
    among = 1 + sum((above(S[i][q] - S[i][p]) for q in positives_of(y, i) if q != p), nothing)
    before = sum((below(S[i][n] - S[i][p]) for n in negatives_of(y, i)), nothing)
    return among, before


def of_ranks(x, y, counts, above, below, lost):
    S = cosines(x)
    queries = [i for i in range(len(y)) if positives_of(y, i) and len(set(y)) > 1]
    terms = [(i, lost([ranks_of(S, y, i, p, above, below) for p in positives_of(y, i)])) for i in queries]
    return mean(terms, y, counts)


def precision_lost(ranks):
    return 1 - sum(among / (among + before) for among, before in ranks) / len(ranks)


def smooth_ap(x, y, *, temperature=0.01, counts=None):
    def sigmoid(t):
        return step(t, temperature)

    return of_ranks(x, y, counts, sigmoid, sigmoid, precision_lost)


def sup_ap(x, y, *, temperature=0.01, slope=100.0, shift=0.05, calibration=1.0, counts=None):
    tie = 1e-6  # two copies of an image, up to rounding

    def above(t):
        return torch.tensor(0.5 if abs(t) <= tie else float(t > 0), dtype=torch.float64)

    def below(t):
        if t <= tie:
            return step(t, temperature)
        if t <= shift:
            return 0.5 + step(t, temperature)
        return slope * (t - shift) + 0.5 + step(torch.tensor(shift, dtype=torch.float64), temperature)

    S, pulls, pushes = cosines(x), [], []
    for i in range(len(y)):
        pulls += [(i, 0.9 - S[i][p]) for p in positives_of(y, i) if S[i][p] < 0.9]
        pushes += [(i, S[i][n] - 0.6) for n in negatives_of(y, i) if S[i][n] > 0.6]
    ranked = of_ranks(x, y, counts, above, below, precision_lost)
    return ranked + calibration * (mean(pulls, y, counts) + mean(pushes, y, counts))


def recall_at_k(x, y, *, ks=(1, 2, 4, 8, 16), temperature=0.01, cut_temperature=1.0, counts=None):
    def sigmoid(t):
        return step(t, temperature)

    def lost(ranks):
        recalls = []
        for k in ks:
            found = sum(step(k - (among + before), cut_temperature) for among, before in ranks)
            recalls.append(torch.clamp(found, max=k) / min(k, len(ranks)))
        return 1 - sum(recalls) / len(recalls)

    return of_ranks(x, y, counts, sigmoid, sigmoid, lost)


def pnp(x, y, *, form="Dq", temperature=0.01, alpha=4.0, counts=None):
    penalty = {
        "O": lambda t: t,
        "Ds": lambda t: torch.log(1 + t),
        "Dq": lambda t: 1 - (1 + t) ** -alpha,
        "Iu": lambda t: (1 + t) * torch.log(1 + t),
    }[form]

    def sigmoid(t):
        return step(t, temperature)

    return of_ranks(
        x, y, counts, sigmoid, sigmoid, lambda ranks: sum(penalty(t) for _, t in ranks) / len(ranks)
    )


def circle(x, y, *, margin=0.4, scale=80.0, counts=None):
    S, terms = cosines(x), []
    for i in range(len(y)):
        P, N = positives_of(y, i), negatives_of(y, i)
        if P and N:
            pushes = [scale * torch.relu(S[i][n].detach() + margin) * (S[i][n] - margin) for n in N]
            pulls = [-scale * torch.relu(1 + margin - S[i][p].detach()) * (S[i][p] - 1 + margin) for p in P]
            terms.append((i, log_one_plus([lse(pushes) + lse(pulls)])))
    return mean(terms, y, counts)


def supcon(x, y, *, temperature=0.1, metric="cosine", counts=None):
    near, terms = nearness(x, metric), []
    for i in range(len(y)):
        if (P := positives_of(y, i)) and len(set(y)) > 1:
            among = lse([near[i][k] / temperature for k in range(len(y)) if k != i])
            terms.append((i, sum(among - near[i][p] / temperature for p in P) / len(P)))
    return mean(terms, y, counts)


def info_nce(x, y, *, temperature=0.05, symmetric=True, metric="cosine", counts=None):
    near, terms = nearness(x, metric), []
    for i in range(len(y)):
        for p in positives_of(y, i):
            losing = [(near[i][n] - near[i][p]) / temperature for n in negatives_of(y, i)]
            terms.append((i, log_one_plus(losing)))
    return mean(terms, y, counts)


def info_nce_of_partners(x, others, y, *, temperature=0.05, symmetric=True, counts=None):
    """Row by row; ``y`` are the labels of both sides."""
    S = [[unit(a) @ unit(b) / temperature for b in others] for a in x]
    terms = []
    for i in range(len(y)):
        there = log_one_plus([S[i][j] - S[i][i] for j in range(len(y)) if y[j] != y[i]])
        back = log_one_plus([S[j][i] - S[i][i] for j in range(len(y)) if y[j] != y[i]])
        terms.append((i, (there + back) / 2 if symmetric else there))
    return mean(terms, y, counts)


def ranked_list(x, y, *, margin=0.4, alpha=1.2, temperature=10.0, metric="euclidean", counts=None):
    near, terms = nearness(x, metric), []
    for i in range(len(y)):
        far = [-near[i][p] for p in positives_of(y, i) if -near[i][p] > alpha - margin]
        close = [-near[i][n] for n in negatives_of(y, i) if -near[i][n] < alpha]
        term = torch.zeros((), dtype=torch.float64)
        if far:
            term = term + 0.5 * sum(d - alpha + margin for d in far) / len(far)
        if close:
            shares = torch.softmax(torch.stack([temperature * (alpha - d.detach()) for d in close]), 0)
            term = term + 0.5 * sum(w * (alpha - d) for w, d in zip(shares, close, strict=True))
        terms.append((i, term))
    return mean(terms, y, counts)


def tuplet_margin(x, y, *, margin_degrees=5.73, scale=64.0, counts=None):
    z, S, beta, terms = units(x), cosines(x), radians(margin_degrees), []
    for i in range(len(y)):
        for p in positives_of(y, i):
            same = torch.equal(z[i], z[p])  # where the angle has no derivative
            turned = S[i][p] * cos(beta) if same else torch.cos(torch.acos(S[i][p]) - beta)
            terms.append((i, log_one_plus([scale * (S[i][n] - turned) for n in negatives_of(y, i)])))
    return mean(terms, y, counts)


def angular(x, y, *, angle_degrees=45.0, counts=None):
    S, t, terms = cosines(x), tan(radians(angle_degrees)) ** 2, []
    for a in range(len(y)):
        for p in positives_of(y, a):
            exponents = [4 * t * (S[a][n] + S[p][n]) - 2 * (1 + t) * S[a][p] for n in negatives_of(y, a)]
            terms.append((a, log_one_plus(exponents)))
    return mean(terms, y, counts)


def pulse(value: Tensor, node: float, width: float) -> Tensor:
    return torch.relu(1 - torch.abs(value - node) / width)


def fast_ap(x, y, *, bins=10, counts=None):
    S, width, terms = cosines(x), 4 / bins, []
    for i in range(len(y)):
        P, N = positives_of(y, i), negatives_of(y, i)
        if not P:
            continue
        right, all_of_them, total = torch.zeros(()), torch.zeros(()), torch.zeros(())
        for j in range(bins + 1):
            here = sum(pulse(2 - 2 * S[i][p], j * width, width) for p in P)
            right = right + here
            all_of_them = all_of_them + here
            all_of_them = all_of_them + sum(pulse(2 - 2 * S[i][n], j * width, width) for n in N)
            if here > 0:
                total = total + here * right / all_of_them
        terms.append((i, 1 - total / len(P)))
    return mean(terms, y, counts)


def histogram(x, y, *, bins=200, counts=None):
    S, width = cosines(x), 2 / bins
    times = [1.0] * len(y) if counts is None else counts
    nodes = [-1 + j * width for j in range(bins + 1)]
    positives = [(times[i], S[i][p]) for i in range(len(y)) for p in positives_of(y, i)]
    total = sum(weight for weight, _ in positives)
    here = [
        sum((w * pulse(s, node, width) for w, s in positives), torch.zeros(())) / (total or 1)
        for node in nodes
    ]
    up_to = torch.cumsum(torch.stack(here), 0)
    terms = []
    for i in range(len(y)):
        for n in negatives_of(y, i):
            at = [pulse(S[i][n], node, width) * up for node, up in zip(nodes, up_to, strict=True)]
            terms.append((i, sum(at)))
    return mean(terms, y, counts)
