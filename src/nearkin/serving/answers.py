"""The shapes of answers, as the API documents them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from nearkin.index import Hit, Item


class Answer(BaseModel):
    """Anything that is answered."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """Why a request was not answered."""

    code: str = Field(description="A word for programs.", examples=["too_large"])
    message: str = Field(description="One sentence for people.")


class ErrorAnswer(Answer):
    """A request that was not answered."""

    error: ErrorDetail


class ItemAnswer(Answer):
    """A sample of the index. Where it lies on the server's disk is not told."""

    id: int = Field(description="Its number in this index; it never changes and is never given again.")
    name: str = Field(description="Its path below the folder that was indexed, or its text.")
    label: str | None = Field(description="Its class, if one is known.")
    metadata: dict[str, str | int | float | bool] = Field(description="What else is known about it.")
    has_picture: bool = Field(description="Whether there is a thumbnail.")


class HitAnswer(ItemAnswer):
    """An item that was found."""

    similarity: float = Field(
        description="The cosine of the two embeddings, from -1 to 1; not a probability."
    )
    same: bool | None = Field(
        description="Whether the similarity reaches the model's threshold; null where it has none."
    )


class SearchAnswer(Answer):
    """The nearest items, the most similar first."""

    index: str
    threshold: float | None = Field(description="The similarity from which two samples count as the same.")
    hits: list[HitAnswer]
    milliseconds: float = Field(description="What the server needed.")


class ThresholdAnswer(Answer):
    """From which similarity two samples count as the same, and how often that is wrong."""

    similarity: float
    wanted_false_accept_rate: float
    false_accept_rate: float = Field(description="Measured on the validation classes.")
    false_reject_rate: float = Field(description="Measured on the validation classes.")


class IndexAnswer(Answer):
    """An index that is served."""

    name: str
    items: int
    model: str
    takes: str = Field(description="What can be searched by: images, texts or vectors (then by item only).")
    embedding_dim: int
    precision: str
    fingerprint: str = Field(description="Of the model; equal exactly if the embeddings are.")
    threshold: ThresholdAnswer | None


class IndexesAnswer(Answer):
    """Everything that is served."""

    indexes: list[IndexAnswer]
    upload_bytes: int = Field(description="The largest upload.")
    pixels: int = Field(description="The largest picture.")
    results: int = Field(description="The largest k.")


class ItemsAnswer(Answer):
    """A part of the items."""

    items: list[ItemAnswer]
    offset: int
    more: bool = Field(description="Whether there are items after these.")


class LabelAnswer(Answer):
    """A class and how many items it has."""

    label: str
    count: int


class LabelsAnswer(Answer):
    """The classes, by name."""

    labels: list[LabelAnswer]


class ClusterAnswer(Answer):
    """Items that lie together."""

    size: int
    labels: list[LabelAnswer] = Field(description="The most frequent labels in it.")
    items: list[ItemAnswer] = Field(description="Some of them, the most central first.")


class ClustersAnswer(Answer):
    """Groups of items, the largest first."""

    clusters: list[ClusterAnswer]


class MapAnswer(Answer):
    """The items in two dimensions: positions from 0 to 1, in the order of ``ids``."""

    ids: list[int]
    x: list[float]
    y: list[float]
    labels: list[int] = Field(description="Positions in ``names``; -1 without a label.")
    names: list[str]
    total: int = Field(description="Items of the index; a large one is drawn by a part of them.")


class VerifyAnswer(Answer):
    """Whether two pictures show the same."""

    similarity: float = Field(description="The cosine of the two embeddings; not a probability.")
    threshold: float | None
    same: bool | None = Field(description="Whether the similarity reaches the threshold; null without one.")


class HealthAnswer(Answer):
    """The server answers."""

    status: str
    version: str


class SessionRequest(BaseModel):
    """The API key, sent once by the page."""

    key: str = Field(max_length=1_000)


def item_fields(item: Item) -> dict[str, Any]:
    """What is told about an item: everything but where it lies."""
    return {
        "id": item.id,
        "name": item.name,
        "label": item.label,
        "metadata": dict(item.metadata),
        "has_picture": item.path is not None,
    }


def item_answer(item: Item) -> ItemAnswer:
    """An item as it is answered."""
    return ItemAnswer(**item_fields(item))


def hit_answer(hit: Hit) -> HitAnswer:
    """A found item as it is answered."""
    return HitAnswer(**item_fields(hit.item), similarity=round(hit.similarity, 6), same=hit.same)
