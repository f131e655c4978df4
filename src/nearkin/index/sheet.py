"""A contact sheet of what a search found: one HTML file that needs no other."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from nearkin.data import read_image
from nearkin.data.decoding import BrokenImageError
from nearkin.data.pixels import to_pil
from nearkin.index.items import Item

SIDE = 180  # pixels of a thumbnail
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem;
  color: #222; background: #fff; }}
h1 {{ font-size: 1.3rem; }}
h2 {{ font-size: 1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere; }}
.row {{ display: flex; flex-wrap: wrap; gap: .8rem; }}
figure {{ margin: 0; width: {side}px; }}
img, .none {{ width: {side}px; height: {side}px; object-fit: contain; background: #f2f2f2; display: flex;
  align-items: center; justify-content: center; text-align: center; color: #666; }}
figcaption {{ font-size: .8rem; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #ddd; background: #1b1b1b; }} img, .none {{ background: #2a2a2a; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def sheet(title: str, rows: Iterable[tuple[str, Sequence[tuple[Item | Path, str]]]]) -> str:
    """An HTML page with a row of thumbnails per heading.

    Args:
        title: Of the page.
        rows: A heading, and items (or files) with what is written below each.
    """
    parts = []
    for heading, cells in rows:
        figures = "\n".join(_figure(shown, words) for shown, words in cells)
        parts.append(f'<h2>{escape(heading)}</h2>\n<div class="row">\n{figures}\n</div>')
    return _PAGE.format(title=escape(title), side=SIDE, body="\n".join(parts))


def _figure(shown: Item | Path, words: str) -> str:
    path = shown.path if isinstance(shown, Item) else shown
    name = shown.name
    caption = f"<figcaption>{escape(words)}<br>{escape(name)}</figcaption>"
    try:
        picture = '<div class="none">no image</div>' if path is None else _thumbnail(path, name)
    except (BrokenImageError, OSError):
        picture = '<div class="none">the file is gone</div>'
    return f"<figure>{picture}{caption}</figure>"


def _thumbnail(path: Path, name: str) -> str:
    picture = to_pil(read_image(path)).convert("RGB")
    picture.thumbnail((2 * SIDE, 2 * SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(name, quote=True)}">'
