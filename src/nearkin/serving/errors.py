"""What a client is told when a request cannot be answered: a status, a code for programs, one sentence."""

from __future__ import annotations

from collections.abc import Mapping


class RequestError(Exception):
    """A request that is refused or cannot be answered.

    Args:
        status: The HTTP status.
        code: A word for programs, such as ``too_large``.
        message: One sentence for people.
        headers: Sent with the answer.

    >>> RequestError(404, "no_item", "there is no item 7").body()
    {'error': {'code': 'no_item', 'message': 'there is no item 7'}}
    """

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def body(self) -> dict[str, dict[str, str]]:
        """The answer as plain values."""
        return {"error": {"code": self.code, "message": self.message}}


def busy() -> RequestError:
    """More requests than the server takes at a time."""
    return RequestError(
        503, "busy", "the server has too many requests at the moment: try again soon", {"Retry-After": "1"}
    )
