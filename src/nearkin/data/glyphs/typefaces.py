"""Characters as the typefaces inside matplotlib draw them, one class per distinct shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
TYPEFACES = tuple(family + style for family, styles in _STYLES.items() for style in styles)
MINIMUM_TYPEFACES = 12
MASK_SIDE = 48
BORDER = 4
_FONT_SIZE = 48
_CANVAS = 4 * _FONT_SIZE

# Mean over typefaces of the cosine between two drawings. Latin o and Cyrillic о have 1.0, the Greek smooth
# and rough breathings 0.98, m and superscript ᵐ 0.93.
SAME_SHAPE = 0.92


@dataclass(frozen=True)
class Characters:
    """Characters and their drawings.

    Attributes:
        characters: One character per class.
        masks: ``uint8`` ``(characters, typefaces, side, side)``, 255 is ink; all 0 where a face lacks it.
        drawn: bool ``(characters, typefaces)``, whether the face has the character.
    """

    characters: tuple[str, ...]
    masks: Tensor
    drawn: Tensor

    def select(self, keep: Tensor) -> Characters:
        """The characters at the indices ``keep``."""
        chosen = tuple(self.characters[i] for i in keep.tolist())
        return Characters(chosen, self.masks[keep], self.drawn[keep])


def distinct_characters() -> Characters:
    """Every character that enough typefaces draw and that looks like no earlier one."""
    candidates = draw_characters()
    return candidates.select(distinct_shapes(candidates))


def draw_characters() -> Characters:
    """Draw every character that at least 12 of the 16 typefaces have and that leaves ink in as many.

    A mark that takes no room of its own in some typeface is drawn onto another character, and left out.
    """
    files = [Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf" for face in TYPEFACES]
    charmaps = [FT2Font(str(file)).get_charmap() for file in files]
    count = Counter(code for charmap in charmaps for code in charmap)
    codes = sorted(code for code, faces in count.items() if faces >= MINIMUM_TYPEFACES)
    masks = np.zeros((len(codes), len(files), MASK_SIDE, MASK_SIDE), dtype=np.uint8)
    has_room = torch.ones(len(codes), dtype=torch.bool)
    for face, (file, charmap) in enumerate(zip(files, charmaps, strict=True)):
        font = ImageFont.truetype(file, _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
        for row, code in enumerate(codes):
            if code in charmap:
                _draw(chr(code), font, out=masks[row, face])
                has_room[row] &= font.getlength(chr(code)) > 0
    drawings = torch.from_numpy(masks)
    drawn = drawings.flatten(2).amax(dim=2) > 0
    everything = Characters(tuple(map(chr, codes)), drawings, drawn)
    return everything.select((has_room & (drawn.sum(dim=1) >= MINIMUM_TYPEFACES)).nonzero().flatten())


def _draw(character: str, font: ImageFont.FreeTypeFont, *, out: np.ndarray) -> None:
    """Draw a character into ``out``, centred and scaled to fill it but for a border; no ink, no change."""
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    ImageDraw.Draw(canvas).text((_FONT_SIZE, _FONT_SIZE), character, fill=255, font=font)
    ink = canvas.getbbox()
    if ink is None:
        return
    shape = canvas.crop(ink)
    scale = (MASK_SIDE - 2 * BORDER) / max(shape.size)
    width, height = (max(1, round(length * scale)) for length in shape.size)
    left, top = (MASK_SIDE - width) // 2, (MASK_SIDE - height) // 2
    out[top : top + height, left : left + width] = shape.resize((width, height), Image.Resampling.BILINEAR)


def distinct_shapes(candidates: Characters) -> Tensor:
    """Indices of the characters that do not look like one already kept, in code point order.

    Two characters look the same if their drawings, which fill the same box, have a mean cosine above
    :data:`SAME_SHAPE` over the typefaces that have both. So homoglyphs of several scripts, small and capital
    letters of one shape, and superscripts count once.
    """
    shapes = F.avg_pool2d(candidates.masks.float(), kernel_size=2).flatten(
        2
    )  # half size: faster, and blurred
    shapes = F.normalize(shapes, dim=2).transpose(0, 1)  # a face that lacks the character has all zeros
    drawn = candidates.drawn.float()
    similarity = torch.zeros(len(drawn), len(drawn))
    for face in shapes:
        similarity.addmm_(face, face.T)
    alike = similarity / (drawn @ drawn.T).clamp_(min=1) > SAME_SHAPE
    kept: list[int] = []
    free = torch.ones(len(drawn), dtype=torch.bool)
    for index in range(len(drawn)):
        if free[index]:
            kept.append(index)
            free &= ~alike[index]
    return torch.tensor(kept)
