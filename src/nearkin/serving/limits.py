"""What a server gives to one request, and to all of them together."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Bounds that keep a server answering; what exceeds one gets a status of its own, never a crash.

    Attributes:
        upload_bytes: The largest body of a request; more is answered with 413.
        pixels: The largest picture, by its header and before it is decoded; more is answered with 413.
        seconds: The longest that a request may take; then 504, or 408 if its body did not arrive.
        waiting: Requests that are worked on at a time; one more is answered with 503.
        buffered_bytes: Bytes of all uploads in memory together; more is answered with 503.
        batch: Pictures that the network sees at once.
        results: The largest ``k``, and the most items in one list.
        text_characters: The longest text that is searched by.
        map_points: The most points of the 2-D map that are sent.

    >>> Limits(seconds=5).seconds
    5
    >>> Limits(batch=0)
    Traceback (most recent call last):
    ...
    ValueError: limit batch=0 must be larger than 0
    """

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    seconds: float = 30.0
    waiting: int = 512
    buffered_bytes: int = 512_000_000
    batch: int = 32
    results: int = 200
    text_characters: int = 2_000
    map_points: int = 20_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"limit {field.name}={getattr(self, field.name)} must be larger than 0")
