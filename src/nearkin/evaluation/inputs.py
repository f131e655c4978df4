"""What every score asks of its input, so that bad input is an error and never a number."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Metric = Literal["cosine", "euclidean"]


def checked_embeddings(embeddings: Tensor, name: str = "embeddings") -> Tensor:
    """``(N, D)`` finite floats, detached; half precision becomes float32, float64 stays."""
    if not isinstance(embeddings, Tensor):
        raise ValueError(f"{name} must be a torch tensor, not {type(embeddings).__name__}")
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            f"{name} must have shape (N, D) with at least one row, not {tuple(embeddings.shape)}"
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"{name} must be floating point, not {embeddings.dtype}")
    embeddings = embeddings.detach()
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    _refuse_rows(~embeddings.isfinite().all(dim=1), f"{name} hold NaN or Inf")
    return embeddings


def checked_labels(labels: Tensor, rows: int, device: torch.device, name: str = "labels") -> Tensor:
    """``(N,)`` int64 class labels, or ``(N, L)`` boolean multi-hot labels, on ``device``."""
    labels = torch.as_tensor(labels, device=device)
    if labels.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (N,) or, multi-hot, (N, L), not {tuple(labels.shape)}")
    if len(labels) != rows:
        raise ValueError(f"{rows} embeddings but {len(labels)} {name}")
    if labels.ndim == 2:
        if not ((labels == 0) | (labels == 1)).all():
            raise ValueError(f"two-dimensional {name} are multi-hot and may hold only 0 and 1")
        return labels.bool()
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name} must be integers, not {labels.dtype}")
    return labels.long()


def checked_metric(metric: str) -> Metric:
    """``metric`` if it is one that is known."""
    if metric not in get_args(Metric):
        raise ValueError(f"metric={metric!r} is unknown: choose {' or '.join(get_args(Metric))}")
    return metric  # type: ignore[return-value]


def checked_together(embeddings: Tensor, gallery: Tensor) -> None:
    """Refuse queries and a gallery that do not live in one space."""
    if gallery.shape[1] != embeddings.shape[1]:
        raise ValueError(
            f"embeddings have {embeddings.shape[1]} columns but the gallery has {gallery.shape[1]}"
        )
    if gallery.device != embeddings.device:
        raise ValueError(f"embeddings are on {embeddings.device} but the gallery is on {gallery.device}")


def unit_rows(embeddings: Tensor, name: str = "embeddings") -> Tensor:
    """Rows of length one; an all-zero row has no direction and is an error."""
    # Dividing by the largest entry first keeps the squares of very small or very large rows in range.
    largest = embeddings.abs().amax(dim=1, keepdim=True)
    _refuse_rows(largest.squeeze(1) == 0, f"the cosine is undefined: {name} are all zero")
    scaled = embeddings / largest
    return scaled.div_(scaled.norm(dim=1, keepdim=True))


def _refuse_rows(bad: Tensor, problem: str) -> None:
    if bad.any():
        rows = bad.nonzero().squeeze(1).tolist()
        shown = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
        raise ValueError(f"{problem} in {len(rows)} of {len(bad)} rows ({shown})")
