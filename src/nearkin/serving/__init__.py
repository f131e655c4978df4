"""HTTP API and web page over an index."""

from nearkin.extras import require

for _package in ("fastapi", "uvicorn", "python_multipart"):
    require(_package, extra="serve", purpose="serving an index")

from nearkin.serving.app import create_app  # noqa: E402
from nearkin.serving.keys import ApiKey, find_key  # noqa: E402
from nearkin.serving.limits import Limits  # noqa: E402
from nearkin.serving.server import open_indexes, serve  # noqa: E402

__all__ = ["ApiKey", "Limits", "create_app", "find_key", "open_indexes", "serve"]
