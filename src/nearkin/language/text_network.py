"""A language model as a network: texts in, embeddings out, with gradients where it is to be trained."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor, nn

from nearkin.data import move
from nearkin.language.text import located, sentence_transformer
from nearkin.networks import WrappedNetwork
from nearkin.networks.splitting import device_of


class _Sentences(nn.Module):
    """Texts to what a sentence-transformers model makes of them, ``(B, E)``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, texts: Any) -> Tensor:
        model: Any = self.model
        tokens = move(dict(model.preprocess(list(texts))), device_of(model))
        embeddings: Tensor = model(tokens)["sentence_embedding"]
        return embeddings


def text_network(
    model: str | os.PathLike[str] = "minilm", *, embedding_dim: int, trained: bool = False
) -> WrappedNetwork:
    """A language model with a linear head.

    Args:
        model: As in :func:`~nearkin.language.text_encoder`.
        embedding_dim: D, the size of an embedding.
        trained: Whether the language model is trained too; by default only the head.

    Raises:
        ConnectionError: The model is neither here nor can it be downloaded.
        ImportError: sentence-transformers is not installed.
    """
    sentences = _Sentences(sentence_transformer(located(os.fspath(model)), "cpu")).eval()
    sentences.requires_grad_(trained)
    features = sentences(["a text"]).shape[1]
    network = WrappedNetwork(sentences, features, embedding_dim=embedding_dim)
    keywords = {"model": os.fspath(model), "embedding_dim": embedding_dim, "trained": trained}
    network.spec = {"object": "nearkin.language:text_network", "keywords": keywords}
    return network
