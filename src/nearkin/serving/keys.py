"""The API key: where it comes from, and whether a request has it, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

COOKIE = "nearkin_session"
VARIABLE = "NEARKIN_API_KEY"
_SHORTEST = 16


class ApiKey:
    """A secret that requests must have; it is neither shown nor logged.

    A program sends it as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``. The page sends it once and
    then has a cookie, from which the key cannot be computed.

    Args:
        secret: At least 16 characters.

    >>> key = ApiKey("correct horse battery")
    >>> key
    ApiKey(…)
    >>> key.admits({"x-api-key": "correct horse battery"}), key.admits({"x-api-key": "wrong"})
    (True, False)
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < _SHORTEST:
            raise ValueError(
                f"the API key has {len(secret)} characters, and fewer than {_SHORTEST} can be guessed: "
                "make one with openssl rand -hex 32"
            )
        self._secret = secret.encode()
        self.session = hmac.new(self._secret, b"nearkin page", hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return "ApiKey(…)"

    def matches(self, given: str) -> bool:
        """Whether this is the key, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._secret)

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers (lower-case names) has the key, or the page's cookie."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        has_key = self.matches(given)
        has_cookie = hmac.compare_digest(_cookie(headers.get("cookie", "")).encode(), self.session.encode())
        return has_key or has_cookie


def find_key(file: str | os.PathLike[str] | None = None) -> ApiKey | None:
    """The key in a file, or in the environment variable ``NEARKIN_API_KEY``, or none.

    Raises:
        ValueError: The file has no key, or the key is too short.
        OSError: The file cannot be read.
    """
    if file is None:
        secret = os.environ.get(VARIABLE, "").strip()
        return ApiKey(secret) if secret else None
    secret = Path(file).read_text(encoding="utf-8").strip()
    if not secret:
        raise ValueError(f"{file} is empty, and should hold the API key")
    return ApiKey(secret)


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value
