"""Counts and times in the text format of Prometheus."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    r"""How often values fell below each bound.

    >>> histogram = Histogram("batch", "Sizes.", (1.0, 4.0))
    >>> histogram.observe(3.0)
    >>> print("\n".join(histogram.lines()))
    # HELP batch Sizes.
    # TYPE batch histogram
    batch_bucket{le="1"} 0
    batch_bucket{le="4"} 1
    batch_bucket{le="+Inf"} 1
    batch_sum 3
    batch_count 1
    """

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self._name, self._about, self._bounds = name, about, tuple(bounds)
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(self._bounds) + 1))
        self._sums: dict[Labels, float] = defaultdict(float)

    def observe(self, value: float, **labels: str) -> None:
        """Count a value."""
        key = tuple(labels.items())
        with self._lock:
            self._counts[key][bisect_left(self._bounds, value)] += 1
            self._sums[key] += value

    def lines(self) -> Iterable[str]:
        """As Prometheus reads it."""
        yield from _head(self._name, self._about, "histogram")
        with self._lock:
            found = [(key, list(counts), self._sums[key]) for key, counts in self._counts.items()]
        for key, counts, total in found:
            below = 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                below += count
                edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield f"{self._name}_bucket{_labels((*key, ('le', edge)))} {below}"
            yield f"{self._name}_sum{_labels(key)} {total:g}"
            yield f"{self._name}_count{_labels(key)} {below}"


class Metrics:
    """What a server counts.

    Attributes:
        seconds: Of requests, by route, method and status.
        batches: Sizes of the batches that a network saw, by index.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(
            "nearkin_request_seconds", "Time from a request to the end of its answer.", _SECONDS
        )
        self.batches = Histogram("nearkin_batch_size", "Inputs that were embedded together.", _BATCHES)
        self._gauges: dict[str, tuple[str, Callable[[], Mapping[Labels, float]]]] = {}
        self._started = time.time()
        self.gauge("nearkin_start_time_seconds", "When the server started.", lambda: {(): self._started})
        self.gauge("nearkin_resident_memory_bytes", "Memory of the process.", lambda: {(): memory()})

    def gauge(self, name: str, about: str, read: Callable[[], Mapping[Labels, float]]) -> None:
        """A value that is read when somebody asks, by labels."""
        self._gauges[name] = (about, read)

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        lines = [*self.seconds.lines(), *self.batches.lines()]
        for name, (about, read) in self._gauges.items():
            lines += _head(name, about, "gauge")
            lines += [f"{name}{_labels(labels)} {value:.17g}" for labels, value in read().items()]
        return "\n".join(lines) + "\n"


def memory() -> float:
    """Resident bytes of this process."""
    return float(psutil.Process().memory_info().rss)


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _labels(labels: Labels) -> str:
    r"""Labels as Prometheus wants them escaped.

    >>> _labels((("index", 'a"b'),))
    '{index="a\\"b"}'
    """
    if not labels:
        return ""
    told = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for _, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for (name, _), value in zip(labels, told, strict=True)) + "}"
