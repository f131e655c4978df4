"""Images to network input: two cropping schemes for all losses, and one for images that already fit.

:func:`build` makes a registered transform by its name; :func:`register` enters another one.

Randomness is a function of one seed per image, and nothing else. Whoever makes the seeds (see
:func:`nearkin.data.loader`) decides that they depend on the run, the epoch and the image, and so
the same run gives the same pixels with any number of workers, and again after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from nearkin.data.augmentation import Augmentation
from nearkin.data.decoding import ImageFiles
from nearkin.data.pixels import is_image, to_pixels
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.samples import ImageArray, Samples
from nearkin.data.transform_registry import registry

Scheme = Literal["resized_crop", "simple_crop", "none"]
SCHEMES: tuple[Scheme, ...] = ("resized_crop", "simple_crop", "none")

_CROP_TRIES = 10

register = registry.register
names = registry.names


def build(
    name: str, preprocessing: Preprocessing | None = None, train: bool = True, **keywords: Any
) -> Transform:
    """Make the transform of a name.

    Args:
        name: One of :func:`names`.
        preprocessing: The network's; ``None`` for a network without one.
        train: Whether it is for training.
        keywords: What the transform itself takes, such as ``flip``.
    """
    return registry.build(name, preprocessing, train, **keywords)


class Transform(Protocol):
    """Chosen samples to the inputs of one batch."""

    def __call__(self, samples: Samples, indices: Sequence[int], seeds: Sequence[int], /) -> Any:
        """The samples at ``indices``, each with its own seed; of images float32 ``(B, C, H, W)``."""
        ...


@dataclass(frozen=True)
class View:
    """What a transform takes of one image: a box, resized, a square window of that, mirrored or not.

    Attributes:
        box: Top, left, height and width of the box, in pixels of the image.
        resized: Height and width that the box is resized to.
        corner: Top and left of the window in the resized box.
        size: Side of the window.
        flip: Whether left and right change places.
    """

    box: tuple[int, int, int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    size: int
    flip: bool = False

    def reduction(self) -> int:
        """By how much a JPEG may be shrunk in decoding without the box becoming smaller than needed."""
        _, _, height, width = self.box
        spare = min(height // self.resized[0], width // self.resized[1])
        return max(factor for factor in (1, 2, 4, 8) if factor <= max(spare, 1))

    def on(self, height: int, width: int, of: tuple[int, int]) -> View:
        """The same view on the same image at another size, ``height`` × ``width`` instead of ``of``."""
        if (height, width) == of:
            return self
        vertical, horizontal = height / of[0], width / of[1]
        top, left, box_height, box_width = self.box
        first_row, first_column = round(top * vertical), round(left * horizontal)
        last_row = max(round((top + box_height) * vertical), first_row + 1)
        last_column = max(round((left + box_width) * horizontal), first_column + 1)
        box = (first_row, first_column, last_row - first_row, last_column - first_column)
        return replace(self, box=box)

    def inside_its_box(self) -> View:
        """The same view on an image that has been cropped to the box."""
        return replace(self, box=(0, 0, *self.box[2:]))

    def cut(self, pixels: Tensor, interpolation: str) -> Tensor:
        """``uint8`` ``(C, H, W)`` to ``(C, size, size)``."""
        top, left, height, width = self.box
        pixels = pixels[:, top : top + height, left : left + width]
        if self.resized != (height, width):
            pixels = resize(pixels, self.resized, interpolation)
        top, left = self.corner
        pixels = pixels[:, top : top + self.size, left : left + self.size]
        return pixels.flip(-1) if self.flip else pixels


def resize(pixels: Tensor, size: tuple[int, int], interpolation: str) -> Tensor:
    """``uint8`` ``(C, H, W)`` to ``(C, *size)``, with antialiasing."""
    from nearkin.data import resizing  # noqa: PLC0415  (seconds long: it imports torchvision)

    return resizing.resize(pixels, size, interpolation)


ViewOf = Callable[[int, int, int], View]
"""From height, width and a seed to the view on such an image."""


class CropTransform:
    """Decode, crop, resize, mirror, normalise: what the cropping schemes share.

    Args:
        view_of: Chooses the view on an image of a given height and width, from a seed.
        preprocessing: What the network expects.
        scaled_decoding: Decode large JPEGs at 1/2, 1/4 or 1/8 of their size where the view has fewer pixels
            than that, and all by the fastest way. The pixels differ slightly from those of a full decode.
        interpolation: How boxes are resized.
        augmentation: What else becomes of the pixels.
    """

    def __init__(
        self,
        view_of: ViewOf,
        preprocessing: Preprocessing,
        *,
        scaled_decoding: bool,
        interpolation: str = "bilinear",
        augmentation: Augmentation | None = None,
    ) -> None:
        self.view_of = view_of
        self.preprocessing = preprocessing
        self.scaled_decoding = scaled_decoding
        self.interpolation = interpolation
        self.augmentation = augmentation or None

    def __repr__(self) -> str:
        more = "" if self.augmentation is None else f", augmentation={self.augmentation}"
        return (
            f"CropTransform({self.view_of}, {self.preprocessing}, "
            f"scaled_decoding={self.scaled_decoding}, interpolation={self.interpolation!r}{more})"
        )

    def __call__(self, images: Samples, indices: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The images at ``indices``, each with its own seed, as float32 ``(B, C, size, size)``."""
        size = self.preprocessing.size
        batch = torch.empty(len(indices), self.preprocessing.channels, size, size)
        for place, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            # One by one: an image fits into the processor's cache, and a batch does not.
            self.preprocessing.normalize(self.pixels(images, index, seed), out=batch[place])
        return batch

    def pixels(self, images: Samples, index: int, seed: int) -> Tensor:
        """What the network sees of one image, before it is normalised: ``uint8`` ``(C, size, size)``."""
        pixels = with_channels(self.cut(images, index, seed), self.preprocessing.channels)
        return pixels if self.augmentation is None else self.augmentation(pixels, seed)

    def cut(self, images: Samples, index: int, seed: int) -> Tensor:
        """The view on one image, ``uint8`` ``(C, size, size)``."""
        if isinstance(images, ImageFiles):
            with images.open(index) as image:
                size = (image.height, image.width)
                view = self.view_of(*size, seed)
                if self.scaled_decoding:
                    view = view.on(*image.reduce(view.reduction()), of=size)
                pixels = image.pixels(view.box)
                view = view.inside_its_box()
        else:
            pixels = _pixels_of(images, index)
            view = self.view_of(pixels.shape[1], pixels.shape[2], seed)
        return view.cut(pixels, self.interpolation)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, resized to the input size, mirrored at random.

    Args:
        size: Side of the network's input.
        area: Least and greatest area of the box, as a fraction of the image's.
        ratio: Least and greatest ratio of its width to its height.
        flip: Probability of mirroring.
    """

    size: int
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __call__(self, height: int, width: int, seed: int) -> View:
        """Draw the view on an image of this size."""
        flip, *draws = uniform(1 + 4 * _CROP_TRIES, seed)
        square = (self.size, self.size)
        box = self._box(height, width, draws)
        return View(box, resized=square, corner=(0, 0), size=self.size, flip=flip < self.flip)

    def _box(self, height: int, width: int, draws: Sequence[float]) -> tuple[int, int, int, int]:
        smallest, largest = (math.log(ratio) for ratio in self.ratio)
        for first in range(0, len(draws), 4):
            share, shape, down, right = draws[first : first + 4]
            area = height * width * (self.area[0] + share * (self.area[1] - self.area[0]))
            ratio = math.exp(smallest + shape * (largest - smallest))
            box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < box_width <= width and 0 < box_height <= height:
                top = int(down * (height - box_height + 1))
                left = int(right * (width - box_width + 1))
                return top, left, box_height, box_width
        return self._central_box(height, width)

    def _central_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """For images so long that no draw fits: as much of the middle as the ratios allow."""
        box_width = min(width, max(1, round(height * self.ratio[1])))
        box_height = min(height, max(1, round(width / self.ratio[0])))
        return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


@dataclass(frozen=True)
class RandomCrop:
    """The short side resized, a random square of the input size, mirrored at random.

    Args:
        size: Side of the network's input.
        resize: Short side before the crop.
        flip: Probability of mirroring.
    """

    size: int
    resize: int
    flip: float = 0.5

    def __call__(self, height: int, width: int, seed: int) -> View:
        """Draw the view on an image of this size."""
        flip, down, right = uniform(3, seed)
        resized = short_side_size(height, width, self.resize)
        corner = (int(down * (resized[0] - self.size + 1)), int(right * (resized[1] - self.size + 1)))
        return View((0, 0, height, width), resized, corner, self.size, flip=flip < self.flip)


@dataclass(frozen=True)
class CentreCrop:
    """The short side resized, then the square in the middle.

    Args:
        size: Side of the network's input.
        resize: Short side before the crop.
    """

    size: int
    resize: int

    def __call__(self, height: int, width: int, seed: int) -> View:
        """The view on an image of this size; the seed plays no part."""
        resized = short_side_size(height, width, self.resize)
        corner = (round((resized[0] - self.size) / 2), round((resized[1] - self.size) / 2))
        return View((0, 0, height, width), resized, corner, self.size)


class Normalization:
    """Images that have the right size already: a whole batch is fetched and normalised at once.

    Args:
        preprocessing: What the network expects.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __repr__(self) -> str:
        return f"Normalization({self.preprocessing})"

    def __call__(self, images: Samples, indices: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The images at ``indices`` as float32 ``(B, C, size, size)``; the seeds play no part."""
        if isinstance(images, ImageArray):
            pixels = images.pixels[torch.as_tensor(indices, dtype=torch.long)]
            self._check(images.pixels.shape[2:], images, 0)
        else:
            chosen = [_pixels_of(images, index) for index in indices]
            for index, image in zip(indices, chosen, strict=True):
                self._check(image.shape[1:], images, index)
            pixels = torch.stack(chosen)
        return self.preprocessing.normalize(with_channels(pixels, self.preprocessing.channels))

    def pixels(self, images: Samples, index: int, seed: int) -> Tensor:
        """What the network sees of one image, before it is normalised: ``uint8`` ``(C, size, size)``."""
        pixels = _pixels_of(images, index)
        self._check(pixels.shape[1:], images, index)
        return with_channels(pixels, self.preprocessing.channels)

    def _check(self, shape: torch.Size, images: Samples, index: int) -> None:
        size = self.preprocessing.size
        if tuple(shape) != (size, size):
            raise ValueError(
                f"image {images.name(index)} has {shape[0]} × {shape[1]} pixels and the network takes "
                f"{size} × {size}: choose the scheme resized_crop or simple_crop instead of none"
            )


def _pixels_of(samples: Samples, index: int) -> Tensor:
    sample = samples[index]
    if not is_image(sample):
        raise TypeError(
            f"the transforms {', '.join(SCHEMES)} take images, and sample {samples.name(index)!r} of "
            f"{type(samples).__name__} is a {_kind(sample)}: choose the transform as_is, or give PerSample "
            "a function of your own"
        )
    return to_pixels(sample)


def _kind(sample: object) -> str:
    if isinstance(sample, Tensor):
        return f"tensor of {sample.dtype} {tuple(sample.shape)}"
    return type(sample).__name__


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """``uint8`` ``(…, C, H, W)``: grey to three equal channels, or RGB to its luma (ITU-R 601)."""
    if pixels.shape[-3] == channels:
        return pixels
    if pixels.shape[-3] == 1:
        return pixels.expand(*pixels.shape[:-3], channels, *pixels.shape[-2:])
    if (pixels.shape[-3], channels) != (3, 1):
        raise ValueError(f"images of {pixels.shape[-3]} channels for a network that takes {channels}")
    red, green, blue = pixels.float().unbind(-3)
    return (0.299 * red + 0.587 * green + 0.114 * blue).round().to(torch.uint8).unsqueeze(-3)


def training_transform(
    preprocessing: Preprocessing,
    scheme: Scheme = "resized_crop",
    *,
    area: tuple[float, float] = (0.08, 1.0),
    flip: float = 0.5,
    scaled_decoding: bool = True,
) -> Transform:
    """What training does to an image.

    Args:
        preprocessing: The network's ``.preprocessing``.
        scheme: ``resized_crop``: a box of random area and shape, resized; ``simple_crop``: short side
            resized, then a random crop; both mirror at random. ``none``: only normalise.
        area: Least and greatest area of ``resized_crop``'s box, as a fraction of the image's.
        flip: Probability of mirroring.
        scaled_decoding: See :class:`CropTransform`.

    >>> from nearkin.data import ImageArray
    >>> photos = ImageArray(torch.zeros(2, 3, 300, 400, dtype=torch.uint8))
    >>> transform = training_transform(Preprocessing(224, (0.5,) * 3, (0.5,) * 3), "simple_crop")
    >>> transform(photos, [0, 1], seeds=[1, 2]).shape
    torch.Size([2, 3, 224, 224])
    """
    choices: dict[str, dict[str, Any]] = {
        "resized_crop": {"scale": area, "flip": flip, "scaled_decoding": scaled_decoding},
        "simple_crop": {"flip": flip, "scaled_decoding": scaled_decoding},
    }
    return build(scheme, preprocessing, train=True, **choices.get(scheme, {}))


def evaluation_transform(
    preprocessing: Preprocessing,
    scheme: Scheme = "resized_crop",
    *,
    scaled_decoding: bool = False,
) -> Transform:
    """What evaluation does to an image: short side resized and centre crop, or nothing but normalise.

    Args:
        preprocessing: The network's ``.preprocessing``; its ``resize`` is the short side (by default
            the size × 256 / 224) and its ``interpolation`` is used.
        scheme: Both cropping schemes evaluate alike; ``none`` only normalises.
        scaled_decoding: See :class:`CropTransform`; off, so that published numbers come out to the digit.
    """
    keywords = {"scaled_decoding": scaled_decoding} if scheme in ("resized_crop", "simple_crop") else {}
    return build(scheme, preprocessing, train=False, **keywords)


@registry.register("resized_crop")
def resized_crop(
    preprocessing: Preprocessing | None,
    train: bool = True,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: float = 0.5,
    colour: float = 0.0,
    erase: float = 0.0,
    rand_augment: int = 0,
    magnitude: float = 0.3,
    scaled_decoding: bool | None = None,
) -> Transform:
    """Training: a box of random area and shape, resized and mirrored at random. Evaluation: a centre crop.

    Args:
        preprocessing: The network's.
        train: Whether it is for training.
        scale: Least and greatest area of the box, as a fraction of the image's.
        flip: Probability of mirroring; 0 where left and right matter, as in text.
        colour: Strength of random changes of colours, 0 to 1.
        erase: Probability that a random box is painted over.
        rand_augment: How many random operations are applied, as in RandAugment.
        magnitude: Strength of these operations, 0 to 1.
        scaled_decoding: See :class:`CropTransform`; by default in training only.
    """
    preprocessing = _needed(preprocessing, "resized_crop")
    augmentation = Augmentation(colour, erase, rand_augment, magnitude)
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale={scale} must be two fractions of an image's area, the smaller first")
    if not train:
        return _centre_crop(preprocessing, scaled_decoding)
    view_of = RandomResizedCrop(preprocessing.size, (scale[0], scale[1]), flip=_probability(flip))
    return CropTransform(
        view_of, preprocessing, scaled_decoding=scaled_decoding is not False, augmentation=augmentation
    )


@registry.register("simple_crop")
def simple_crop(
    preprocessing: Preprocessing | None,
    train: bool = True,
    *,
    flip: float = 0.5,
    colour: float = 0.0,
    erase: float = 0.0,
    rand_augment: int = 0,
    magnitude: float = 0.3,
    scaled_decoding: bool | None = None,
) -> Transform:
    """Short side resized, then in training a random crop, mirrored at random, in evaluation the centre.

    Args:
        preprocessing: The network's.
        train: Whether it is for training.
        flip: Probability of mirroring; 0 where left and right matter, as in text.
        colour: Strength of random changes of colours, 0 to 1.
        erase: Probability that a random box is painted over.
        rand_augment: How many random operations are applied, as in RandAugment.
        magnitude: Strength of these operations, 0 to 1.
        scaled_decoding: See :class:`CropTransform`; by default in training only.
    """
    preprocessing = _needed(preprocessing, "simple_crop")
    augmentation = Augmentation(colour, erase, rand_augment, magnitude)
    if not train:
        return _centre_crop(preprocessing, scaled_decoding)
    view_of = RandomCrop(preprocessing.size, _resize_of(preprocessing), _probability(flip))
    return CropTransform(
        view_of, preprocessing, scaled_decoding=scaled_decoding is not False, augmentation=augmentation
    )


@registry.register("none")
def none(preprocessing: Preprocessing | None, train: bool = True) -> Transform:
    """Images that have the network's input size already are only normalised."""
    return Normalization(_needed(preprocessing, "none"))


def _centre_crop(preprocessing: Preprocessing, scaled_decoding: bool | None) -> Transform:
    return CropTransform(
        CentreCrop(preprocessing.size, _resize_of(preprocessing)),
        preprocessing,
        scaled_decoding=bool(scaled_decoding),
        interpolation=preprocessing.interpolation,
    )


def _needed(preprocessing: Preprocessing | None, name: str) -> Preprocessing:
    if preprocessing is None:
        raise ValueError(
            f"the transform {name} needs to know what the network expects, and this network has no "
            "preprocessing: choose the transform as_is, or give PerSample a function of your own"
        )
    return preprocessing


def _probability(flip: float) -> float:
    if not 0 <= flip <= 1:
        raise ValueError(f"flip={flip} must lie between 0 and 1")
    return flip


def _resize_of(preprocessing: Preprocessing) -> int:
    resize = preprocessing.resize or round(preprocessing.size * 256 / 224)
    if resize < preprocessing.size:
        raise ValueError(f"resize={resize} leaves no room for a crop of {preprocessing.size} pixels")
    return resize


def short_side_size(height: int, width: int, resize: int) -> tuple[int, int]:
    """Size of an image whose short side becomes ``resize`` (the long one rounds down, as in torchvision)."""
    if height <= width:
        return resize, int(resize * width / height)
    return int(resize * height / width), resize


def uniform(count: int, seed: int) -> list[float]:
    """Numbers in [0, 1) that depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).tolist()
