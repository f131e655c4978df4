"""Few images: some of every training class, all with their labels."""

from __future__ import annotations

from nearkin.data import SampleSet
from nearkin.protocols.less_supervision import LessSupervision, drawn_of_each_class
from nearkin.training.protocol import register


@register("few_images")
class FewImages(LessSupervision):
    """So many images of every training class, at random; the others are left out.

    The draw depends on the seed: with the same one, fewer images are a part of more.

    Args:
        images_per_class: How many; classes with fewer keep all.
    """

    def __init__(self, images_per_class: int = 5) -> None:
        if images_per_class < 2:
            raise ValueError(f"images_per_class={images_per_class} must be at least 2")
        self.images_per_class = images_per_class

    def weakened(self, samples: SampleSet, seed: int) -> tuple[SampleSet, str]:
        """The drawn samples."""
        few = samples.select(drawn_of_each_class(samples.labels, lambda _: self.images_per_class, seed))
        return few, f"{len(few):,} of {len(samples):,} training samples, {self.images_per_class} of a class"
