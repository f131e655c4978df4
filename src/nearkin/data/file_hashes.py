"""What a set of images is, in one short text, so that no cache is taken for that of other images."""

from __future__ import annotations

import hashlib

from nearkin.data.decoding import ImageFiles
from nearkin.data.samples import ImageArray, Samples


def fingerprint(images: Samples) -> str:
    """A hash that changes when the images do.

    Files are told apart by path below the root, size and time of their last change, which is quick; images in
    memory by their pixels.
    """
    digest = hashlib.sha256()
    if isinstance(images, ImageFiles):
        for index in range(len(images)):
            status = images.path(index).stat()
            digest.update(f"{images.name(index)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    elif isinstance(images, ImageArray):
        digest.update(str(tuple(images.pixels.shape)).encode())
        digest.update(images.pixels.contiguous().numpy().data)
    else:
        for index in range(len(images)):
            image = images[index].contiguous()
            digest.update(str(tuple(image.shape)).encode())
            digest.update(image.numpy().data)
    return digest.hexdigest()
