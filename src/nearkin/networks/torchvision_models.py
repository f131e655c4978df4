"""ResNet, GoogLeNet and AlexNet: torchvision's definitions and key names, without the classifiers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry

IMAGENET = Preprocessing(
    size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize=256, interpolation="bilinear"
)


@registry.register("resnet18")
def resnet18() -> Backbone:
    """ResNet-18 (He et al. 2016, CVPR): 512 features of 7 × 7 places at 224 pixels."""
    return _resnet("resnet18", 512)


@registry.register("resnet50")
def resnet50() -> Backbone:
    """ResNet-50 (He et al. 2016, CVPR): 2,048 features of 7 × 7 places at 224 pixels."""
    return _resnet("resnet50", 2048)


def _resnet(name: str, num_features: int) -> Backbone:
    parts = _children(_model(name), without=("avgpool", "fc"))
    return _backbone(name, parts, num_features, left_out=("fc.",))


@registry.register("googlenet")
def googlenet() -> Backbone:
    """GoogLeNet (Szegedy et al. 2015, CVPR) as torchvision has it: 1,024 features of 7 × 7 places at 224.

    It has batch norm, and 3 × 3 convolutions where the paper has 5 × 5; ``googlenet_published`` is the
    paper's. The input transform that its weights need is part of the network; auxiliary classifiers are not.
    """
    model = _model("googlenet", aux_logits=False, init_weights=True)
    parts = _children(model, without=("aux1", "aux2", "avgpool", "dropout", "fc"))
    parts = {"transform_input": TensorFlowInput()} | parts
    return _backbone("googlenet", parts, 1024, left_out=("aux1.", "aux2.", "fc."))


@registry.register("alexnet")
def alexnet() -> Backbone:
    """AlexNet (Krizhevsky 2014, arXiv 1404.5997) up to its second fully connected layer: 4,096 features."""
    model = _model("alexnet")
    # The last layer is the classifier; the others keep their numbers, and so their names.
    hidden = nn.Sequential(*list(model.classifier)[:-1])
    parts = {
        "features": model.features,
        "avgpool": model.avgpool,
        "flatten": nn.Flatten(),
        "classifier": hidden,
    }
    return _backbone("alexnet", parts, 4096, left_out=("classifier.6.",))


class TensorFlowInput(nn.Module):
    """ImageNet's mean and deviation undone, and 0.5 put in their place: what GoogLeNet was trained with."""

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))
        self.register_buffer("scale", std / 0.5, persistent=False)
        self.register_buffer("shift", (mean - 0.5) / 0.5, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """``(B, 3, H, W)`` to the same shape."""
        return images * self.scale + self.shift


def _model(name: str, **keywords: Any) -> Any:
    import nearkin.torchvision_import  # noqa: F401, PLC0415  (must come before torchvision)

    # isort: split
    from torchvision import models  # noqa: PLC0415

    return models.get_model(name, weights=None, **keywords)


def _children(model: nn.Module, without: Iterable[str]) -> dict[str, nn.Module]:
    return {name: child for name, child in model.named_children() if name not in without}


def _backbone(
    name: str, parts: dict[str, nn.Module], num_features: int, left_out: tuple[str, ...]
) -> Backbone:
    def download() -> Mapping[str, Tensor]:
        from torchvision import models  # noqa: PLC0415

        published = models.get_model_weights(name).IMAGENET1K_V1
        state: Mapping[str, Tensor] = published.get_state_dict(progress=False, check_hash=True)
        return state

    module = nn.Sequential(OrderedDict(parts))
    return Backbone(module, num_features, IMAGENET, left_out, download)
