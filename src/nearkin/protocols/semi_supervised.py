"""Semi-supervised: labels of some training classes, or of some images of each, and none of the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.data import SampleSet
from nearkin.protocols.less_supervision import LessSupervision, drawn_of_each_class
from nearkin.training.protocol import register


@register("semi_supervised")
class SemiSupervised(LessSupervision):
    """A share of the training classes is labelled, or a share of every class's images; the rest is not.

    Without a method for the rest (``[unlabelled]``) it is left out, which is the baseline of the labelled
    part alone. The draw depends on the seed: with the same one, what is labelled of a smaller share is a part
    of what is labelled of a larger one.

    Args:
        labelled_classes: The share of classes whose images are all labelled; two classes at least.
        labelled_images: The share of every class's images that are labelled; two of each at least.
    """

    def __init__(self, labelled_classes: float | None = None, labelled_images: float | None = None) -> None:
        if (labelled_classes is None) == (labelled_images is None):
            raise ValueError(
                "semi_supervised needs protocol.labelled_classes or protocol.labelled_images, and not both"
            )
        shares = {"labelled_classes": labelled_classes, "labelled_images": labelled_images}
        for name, share in shares.items():
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{name}={share} must be above 0 and at most 1")
        self.labelled_classes, self.labelled_images = labelled_classes, labelled_images

    def weakened(self, samples: SampleSet, seed: int) -> tuple[SampleSet, str]:
        """The samples with the labels of the drawn ones only."""
        if self.labelled_classes is not None:
            labelled = torch.isin(samples.labels, self._drawn_classes(samples, seed))
        else:
            labelled = torch.zeros(len(samples), dtype=torch.bool)
            labelled[drawn_of_each_class(samples.labels, self._images, seed)] = True
        kept = samples.without_labels((~labelled).nonzero().flatten())
        count = int(labelled.sum())
        return kept, (
            f"{count:,} of {len(samples):,} training samples have a label, of {kept.num_classes:,} of "
            f"{samples.num_classes:,} classes"
        )

    def _drawn_classes(self, samples: SampleSet, seed: int) -> Tensor:
        assert self.labelled_classes is not None
        count = max(round(self.labelled_classes * samples.num_classes), 2)
        if count > samples.num_classes:
            raise ValueError(f"semi_supervised needs two training classes or more: there are {count - 1}")
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(samples.num_classes, generator=generator)[:count]

    def _images(self, count: int) -> int:
        assert self.labelled_images is not None
        return max(round(self.labelled_images * count), 2)
