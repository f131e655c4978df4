"""What a gallery can show of a sample."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.data.pixels import is_image, to_pixels
from nearkin.data.samples import Samples


def shown(samples: Samples, index: int) -> Tensor | str:
    """The pixels of an image, ``uint8`` ``(C, H, W)``; a text; or the name of anything else.

    A kind that stands for other samples (cached activations) has them as ``.samples``, and they are shown.

    >>> from nearkin.data import Texts
    >>> shown(Texts(["a wren"]), 0)
    'a wren'
    """
    source = getattr(samples, "samples", None)
    if source is not None:
        return shown(source, index)
    sample = samples[index]
    if isinstance(sample, Tensor) and sample.dtype == torch.uint8 and sample.ndim == 3:
        return sample  # with any number of channels: pictures know what to do
    if is_image(sample):
        return to_pixels(sample)
    return sample if isinstance(sample, str) else samples.name(index)
