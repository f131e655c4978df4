"""PIL images as samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PIL import Image
from torch import Tensor

from nearkin.data.pixels import to_pixels


class Pictures:
    """PIL images in memory, of any sizes; a sample is ``uint8`` ``(C, H, W)``, as of every kind of images.

    Args:
        pictures: One PIL image per sample.
        names: What to call each of them; its position by default.

    >>> Pictures([Image.new("RGB", (8, 6))])[0].shape
    torch.Size([3, 6, 8])
    """

    def __init__(self, pictures: Iterable[Image.Image], names: Sequence[str] | None = None) -> None:
        self.pictures = tuple(pictures)
        for index, picture in enumerate(self.pictures):
            if not isinstance(picture, Image.Image):
                raise TypeError(f"picture {index} is a {type(picture).__name__}, not a PIL image")
        self._names = tuple(map(str, range(len(self.pictures)))) if names is None else tuple(names)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        return to_pixels(self.pictures[index])

    def select(self, indices: Sequence[int]) -> Pictures:
        """The pictures at ``indices``, in that order."""
        return Pictures([self.pictures[i] for i in indices], [self._names[i] for i in indices])

    def name(self, index: int) -> str:
        """The name given for this picture, or its position."""
        return self._names[index]
