"""A contact sheet with rows of samples and words below them: one HTML file that needs no other."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image
from torch import Tensor

from nearkin.data.pixels import to_pil

SIDE = 180  # pixels of a thumbnail on the page
_LONGEST = 300  # characters of a text in a cell
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
  align-items: center; justify-content: center; text-align: center; color: #666; overflow: hidden;
  overflow-wrap: anywhere; }}
figure.first {{ outline: 3px solid #b45309; outline-offset: 2px; }}
figcaption {{ font-size: .8rem; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #ddd; background: #1b1b1b; }} img, .none {{ background: #2a2a2a; color: #aaa; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class Cell:
    """A sample on a contact sheet.

    Attributes:
        shown: Its picture, its pixels ``uint8`` ``(C, H, W)``, or words in their place.
        words: What is written below.
        name: What it is called; written below the words.
        first: Whether it is the one that the row is about.
    """

    shown: Image.Image | Tensor | str
    words: str
    name: str
    first: bool = False


def sheet(
    title: str, rows: Iterable[tuple[str, Sequence[Cell]]], *, note: str = "", resolution: int = 2 * SIDE
) -> str:
    """An HTML page with a row of thumbnails per heading.

    Args:
        title: Of the page.
        rows: A heading, and what is below it.
        note: A sentence below the title.
        resolution: The longer side of a thumbnail in the file, in pixels.

    >>> "<h2>birds</h2>" in sheet("Found", [("birds", [Cell("no image", "cosine 0.9", "a.jpg")])])
    True
    """
    parts = [f"<p>{escape(note)}</p>"] if note else []
    for heading, cells in rows:
        figures = "\n".join(_figure(cell, resolution) for cell in cells)
        parts.append(f'<h2>{escape(heading)}</h2>\n<div class="row">\n{figures}\n</div>')
    return _PAGE.format(title=escape(title), side=SIDE, body="\n".join(parts))


def _figure(cell: Cell, resolution: int) -> str:
    if isinstance(cell.shown, str):
        seen = f'<div class="none">{escape(cell.shown[:_LONGEST])}</div>'
    else:
        seen = _thumbnail(cell.shown, cell.name, resolution)
    kind = ' class="first"' if cell.first else ""
    caption = f"<figcaption>{escape(cell.words)}<br>{escape(cell.name)}</figcaption>"
    return f"<figure{kind}>{seen}{caption}</figure>"


def _thumbnail(shown: Image.Image | Tensor, name: str, resolution: int) -> str:
    picture = to_pil(shown).convert("RGB")
    picture.thumbnail((resolution, resolution), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(name, quote=True)}">'
