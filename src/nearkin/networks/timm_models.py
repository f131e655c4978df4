"""Any backbone of timm, as ``timm:NAME``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone
from nearkin.registry import nearest_name

PREFIX = "timm:"


def timm_backbone(name: str, *, size: int | None = None, **keywords: Any) -> Backbone:
    """A timm model without its classifier, under timm's own key names.

    Networks that end in a feature map give it, for the pooling to choose from. Transformers that end in
    tokens give the feature that timm itself would classify.

    Args:
        name: As in ``timm.list_models()``.
        size: Side of the input; by default the one its weights were trained on.
        keywords: What timm's model takes, such as ``drop_path_rate``.
    """
    timm = import_timm()
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}: {nearest_name(name, timm.list_models())}")
    module = timm.create_model(name, num_classes=0, global_pool="", **keywords)
    preprocessing = timm_preprocessing(module, size)
    shape = _output_shape(module, preprocessing)
    if not (len(shape) == 4 and shape[1] == module.num_features) and len(shape) != 2:
        module = timm.create_model(name, num_classes=0, **keywords)
        shape = _output_shape(module, preprocessing)

    def download() -> Mapping[str, Tensor]:
        state: Mapping[str, Tensor] = timm.create_model(name, pretrained=True, num_classes=0).state_dict()
        return state

    return Backbone(
        module,
        shape[1],
        preprocessing,
        _classifier_keys(module),
        download,
        gives_features=len(shape) == 2,
    )


def import_timm() -> Any:
    """The library timm, which is slow to import and needs help beside a CPU-only torch."""
    import nearkin.torchvision_import  # noqa: F401, PLC0415  (must come before timm)

    # isort: split
    import timm  # noqa: PLC0415

    return timm


def timm_preprocessing(module: nn.Module, size: int | None = None) -> Preprocessing:
    """The input that the published weights of a timm model expect, at its own ``size`` or another."""
    config: dict[str, Any] = module.pretrained_cfg  # type: ignore[assignment]
    size = size or config["input_size"][-1]
    return Preprocessing(
        size=size,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        resize=math.floor(size / config["crop_pct"]),
        interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
    )


def _classifier_keys(module: nn.Module) -> tuple[str, ...]:
    classifier = module.pretrained_cfg.get("classifier") or ()  # type: ignore[operator, union-attr]
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    return tuple(f"{name}." for name in names)


@torch.no_grad()
def _output_shape(module: nn.Module, preprocessing: Preprocessing) -> torch.Size:
    module.eval()
    size = preprocessing.size
    output: Tensor = module(torch.zeros(1, preprocessing.channels, size, size))
    module.train()
    return output.shape
