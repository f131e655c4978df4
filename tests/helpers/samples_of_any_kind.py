"""Small splits of samples of every kind that pictures are drawn of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearkin.data import ImageArray, SampleSet

SENTENCES = {
    "weather": ["Rain in the evening.", "Sunny", "Snow above 800 metres; roads may be closed " * 6],
    "prices": ["Bread costs $5 and milk $6_each^now", "Gold is up.", "Oil fell by 3 %\nto 71 dollars."],
    "sport": ["Donaudampfschifffahrtsgesellschaftskapitän", "A record\x00 over 800 m", "3 : 1"],
    "music": ["東京交響楽団の演奏会", "Она играет на скрипке", "&lt;b&gt; <b>bold</b> 🎻"],
}


class AnySamples:
    """Samples of any kind, with names."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def select(self, indices: Sequence[int]) -> AnySamples:
        return AnySamples([self.items[index] for index in indices])

    def name(self, index: int) -> str:
        return f"sample {index}"


def coloured_noise(channels: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(100, 156, (24, channels, 12, 12), generator=generator, dtype=torch.uint8)


def samples_of_kind(kind: str) -> SampleSet:
    """A small split: images with 1 to 5 channels, texts, vectors, or things that cannot be drawn."""
    if kind.startswith("images"):
        pixels = coloured_noise(int(kind.removeprefix("images")))
        return SampleSet(ImageArray(pixels), torch.arange(24) // 4)
    if kind == "texts":
        labels = [name for name, texts in SENTENCES.items() for _ in texts]
        return SampleSet(AnySamples([text for texts in SENTENCES.values() for text in texts]), labels)
    vectors = torch.randn(24, 200, generator=torch.Generator().manual_seed(0))
    items: Sequence[Any] = list(vectors) if kind == "vectors" else [object() for _ in range(24)]
    return SampleSet(AnySamples(items), torch.arange(24) // 4)


KINDS = ("images1", "images3", "images4", "images5", "texts", "vectors", "things")
