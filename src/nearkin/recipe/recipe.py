"""Everything about a run in one typed object: TOML on disk, ``--set loss.margin=0.2`` on the command line."""

from __future__ import annotations

import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from nearkin import losses
from nearkin.data.registry import registry as data_sets
from nearkin.losses.base import registry as loss_registry
from nearkin.networks import timm_models
from nearkin.networks.base import registry as networks
from nearkin.networks.pooling import poolings
from nearkin.recipe.terms import THESIS, merged, terms_of_paper, terms_of_thesis
from nearkin.registry import Registry, nearest_name
from nearkin.sampling.base import registry as samplers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class RecipeError(ValueError):
    """A recipe that cannot be run; the message says which key and what to write instead."""


class Section(BaseModel):
    """A table of the recipe. Unknown keys are errors; nothing changes after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Choice(Section):
    """A table that names an entry of a room and, beside its own keys, holds that entry's keywords."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_default=True)

    name: str

    registry: ClassVar[Registry[Any]]
    given_elsewhere: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _check_keywords(self) -> Choice:
        known = self.keywords_of(self.name)
        for keyword, value in self.keywords.items():
            if keyword not in known:
                own = [field for field in type(self).model_fields if field != "name"]
                hint = nearest_name(keyword, [*known, *own])
                raise ValueError(f"{self.registry.kind} {self.name!r} has no keyword {keyword!r}: {hint}")
            _check_type(keyword, value, known[keyword])
        return self

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the named entry."""
        return dict(self.model_extra or {})

    @classmethod
    def _maker(cls, name: str) -> Callable[..., Any]:
        return cls.registry.get(name)

    @classmethod
    def keywords_of(cls, name: str) -> dict[str, Any]:
        """The keywords that ``name`` takes from a recipe, each with its type."""
        maker = cls._maker(name)
        types = typing.get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
        hidden = cls.given_elsewhere | set(cls.model_fields)
        return {
            keyword: types.get(keyword, Any)
            for keyword, parameter in inspect.signature(maker).parameters.items()
            if keyword not in hidden and parameter.kind is not parameter.VAR_KEYWORD
        }


def _check_type(keyword: str, value: Any, wanted: Any) -> None:
    """Refuse a value that TOML could not mean for this keyword."""
    value = tuple(value) if isinstance(value, list) else value
    accepted = TypeAdapter(wanted, config=ConfigDict(arbitrary_types_allowed=True, strict=True))
    try:
        accepted.validate_python(value)
    except ValidationError:
        name = getattr(wanted, "__name__", None) or str(wanted).replace("typing.", "")
        raise ValueError(f"{keyword} must be of type {name}, not {value!r}") from None


class DataRecipe(Choice):
    """Which images.

    Attributes:
        name: A registered data set.
        root: Its folder.
        transform: ``resized_crop``, ``simple_crop`` or ``none`` (images that have the right size).
        workers: Processes that decode images; the batches are the same with any number.
        skip_bad: Leave images out that cannot be read, and say so in the result, instead of stopping.
    """

    name: str = "glyphs"
    root: str | None = None
    transform: Literal["resized_crop", "simple_crop", "none"] = "none"
    workers: NonNegativeInt = 0
    skip_bad: bool = False

    registry = data_sets


class NetworkRecipe(Choice):
    """Image to embedding.

    Attributes:
        name: A registered network.
        embedding_dim: D.
        pooling: How a feature map becomes features.
        layer_norm: Normalise features before the head.
        weights: ``imagenet``, or a file.
        freeze_batch_norm: Hold statistics and affine parameters of every batch norm still.
        head_lr_factor: Learning rate of the head, in multiples of the backbone's.
        pca_head: Let the head start as the principal components of the training images' features.
        cached_trunk: A stage of the network, such as ``blocks.5``. Up to there nothing is trained, and what
            it makes of every image (resized, cropped at the centre, and mirrored) is computed once and kept
            on disk; only what comes after it runs in training.
        trunk_cache: The folder for that; by default in the user's cache.
    """

    name: str = "convnet"
    embedding_dim: PositiveInt = 64
    pooling: str = "avg"
    layer_norm: bool = False
    weights: str | None = None
    freeze_batch_norm: bool = False
    head_lr_factor: PositiveFloat = 1.0
    pca_head: bool = False
    cached_trunk: str | None = None
    trunk_cache: str | None = None

    registry = networks

    @model_validator(mode="after")
    def _check_pooling(self) -> NetworkRecipe:
        poolings.get(self.pooling)
        return self

    @classmethod
    def _maker(cls, name: str) -> Callable[..., Any]:
        return timm_models.timm_backbone if name.startswith(timm_models.PREFIX) else super()._maker(name)


class SamplerRecipe(Choice):
    """Which images form a batch.

    Attributes:
        name: A registered sampler. Where a recipe does not say, ``balanced`` for losses that compare the
            images of a batch, which need several of a class, and ``random`` for losses with proxies.
        batch_size: Images per batch.
    """

    name: str = "balanced"
    batch_size: PositiveInt = 180

    registry = samplers
    given_elsewhere = frozenset({"labels", "seed", "rank", "world_size"})


class MemoryRecipe(Section):
    """References from earlier batches, for a pair loss.

    Attributes:
        size: How many embeddings are remembered.
        warmup_steps: Batches before they count.
        weight: Of the loss against them.
    """

    size: PositiveInt
    warmup_steps: NonNegativeInt = 0
    weight: NonNegativeFloat = 1.0


class LanguageRecipe(Section):
    """What a language model knows about class names, beside any loss.

    Attributes:
        weight: Of the guidance.
        shift: Added to similarities in language.
        encoder: ``minilm``, a text model's name on the Hugging Face Hub, or its folder.
        prompt: What the model reads about a class, whose name takes the place of ``{}``.
        pseudo_labels: Name classes by what an ImageNet classifier sees in them, not by their own names.
        names_per_class: How many such names a class gets.
        classifier: The classifier, as ``timm:NAME``.
        classifier_weights: ``imagenet``, or a file.
    """

    weight: NonNegativeFloat = 7.5
    shift: NonNegativeFloat = 1.0
    encoder: str = "minilm"
    prompt: str = "a photo of a {}"
    pseudo_labels: bool = False
    names_per_class: PositiveInt = 5
    classifier: str = "timm:resnet50"
    classifier_weights: str = "imagenet"


class LossRecipe(Choice):
    """The loss and its hyperparameters.

    Attributes:
        name: A registered loss.
        lr: Learning rate of its proxies or boundaries; by default ``lr_factor`` times the network's.
        lr_factor: Used where ``lr`` is not given.
        memory: A cross-batch memory around it; none by default.
        language: Language guidance beside it; none by default.
    """

    name: str = "proxy_anchor"
    lr: PositiveFloat | None = None
    lr_factor: PositiveFloat = 10.0
    memory: MemoryRecipe | None = None
    language: LanguageRecipe | None = None

    registry = loss_registry
    given_elsewhere = frozenset({"num_classes", "embedding_dim", "generator"})

    @model_validator(mode="after")
    def _check_values(self) -> LossRecipe:
        loss = losses.build(self.name, num_classes=2, embedding_dim=2, **self.keywords)
        if self.memory is not None:
            losses.CrossBatchMemory(loss, **self.memory.model_dump())
        if self.language is not None:
            losses.LanguageGuidance(loss, ["name"], torch.ones(1, 1), prompt=self.language.prompt)
        return self


class OptimizerRecipe(Section):
    """How weights move.

    Attributes:
        name: ``adamw``, ``adam``, ``sgd`` (momentum 0.9) or ``rmsprop``.
        lr: Learning rate of the network.
        weight_decay: Of the network and the loss's parameters.
        eps: Added to what Adam, AdamW and RMSprop divide a gradient by; by default the optimiser's own.
        clip: Largest norm of the network's gradient; none by default. Proxies are not clipped.
    """

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    lr: PositiveFloat = 2e-3
    weight_decay: NonNegativeFloat = 1e-4
    eps: PositiveFloat | None = None
    clip: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check_eps(self) -> OptimizerRecipe:
        if self.eps is not None and self.name == "sgd":
            raise ValueError("eps: sgd divides by nothing and takes none")
        return self


class ScheduleRecipe(Section):
    """How the learning rate falls.

    Attributes:
        name: ``cosine`` to 0, ``step`` (times ``factor`` every ``every`` epochs), ``multi_step`` (times
            ``factor`` at every milestone), or ``constant``.
        warmup: Epochs of linear rise from 0, before anything else.
        every: Of ``step``, in epochs.
        milestones: Of ``multi_step``, in epochs.
        factor: Of both.
    """

    name: Literal["cosine", "step", "multi_step", "constant"] = "cosine"
    warmup: NonNegativeFloat = 0.5
    every: PositiveInt = 10
    milestones: tuple[PositiveInt, ...] = ()
    factor: Annotated[float, Field(gt=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _check_milestones(self) -> ScheduleRecipe:
        if (self.name == "multi_step") != bool(self.milestones):
            raise ValueError("milestones go with the schedule multi_step, which needs them: [20, 40]")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones must rise, not {list(self.milestones)}")
        return self


class TrainingRecipe(Section):
    """How long and in which precision.

    Attributes:
        epochs: Passes over the training images.
        stop_after: Stop after this epoch, of the same schedule: where a validation found the best one.
        head_only: Epochs at the beginning in which the backbone is held still and head and loss learn.
        precision: ``fp32``, ``bf16`` or ``fp16`` (mixed).
        checkpoint_minutes: A run that is killed loses at most this much; every epoch's end is kept as well.
        accumulate: Batches per step of the optimiser, which follows the mean of their losses. Pairs are still
            those of one batch; ``chunk`` is for large batches of pairs.
        chunk: Images that are in memory with all their activations at a time. The loss sees the whole batch
            and its gradients are exact; the network runs forward twice. Not with a trained batch norm.
        ema: Decay of a moving average of the weights, such as 0.999. The average is what is validated,
            selected and kept.
        trackers: ``tensorboard`` and ``wandb``, where they are installed, beside ``metrics.jsonl``.
    """

    epochs: PositiveInt = 12
    stop_after: PositiveInt | None = None
    head_only: NonNegativeInt = 0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    checkpoint_minutes: PositiveFloat = 5.0
    accumulate: PositiveInt = 1
    chunk: PositiveInt | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()

    @model_validator(mode="after")
    def _check_last_epoch(self) -> TrainingRecipe:
        if self.stop_after is not None and self.stop_after > self.epochs:
            raise ValueError(f"stop_after={self.stop_after} lies after the last of {self.epochs} epochs")
        return self


class EvaluationRecipe(Section):
    """What is scored.

    Attributes:
        recall_at: The values of k; the first one selects the epoch.
        batch_size: Images per batch.
    """

    recall_at: tuple[PositiveInt, ...] = Field(default=(1, 2, 4, 8), min_length=1)
    batch_size: PositiveInt = 500


class ProtocolRecipe(Section):
    """How the run is selected and tested.

    Attributes:
        name: ``fixed_validation``: the epoch with the best validation score, over classes that are held out
            of training. ``cross_validation``: a network per fold of the training classes, each selected on
            its fold. ``standard``: all classes train, and the last epoch counts. ``standard_best_on_test``:
            the same, and the test classes choose the epoch, which makes their score too good.
        validation_share: Of ``fixed_validation``: hold out this share of the training classes. By default the
            data set's own validation split, or a tenth.
        folds: Of ``cross_validation``; 10 by default.
        fold: Of ``cross_validation``: train and test this one only, counted from 0.
    """

    name: Literal["fixed_validation", "cross_validation", "standard", "standard_best_on_test"] = (
        "fixed_validation"
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    folds: Annotated[int, Field(ge=2)] | None = None
    fold: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> ProtocolRecipe:
        belongs_to = {
            "validation_share": "fixed_validation",
            "folds": "cross_validation",
            "fold": "cross_validation",
        }
        for key, protocol in belongs_to.items():
            if getattr(self, key) is not None and self.name != protocol:
                raise ValueError(f"{key} belongs to {protocol}, and the protocol is {self.name}")
        return self


class Recipe(Section):
    """Everything about a run.

    Attributes:
        terms: Which values stand where the recipe says nothing. ``equal``: the defaults below, the same for
            every loss but for its own hyperparameters. ``thesis``: the thesis's, for its experiments.
            ``published``: those of the loss's own paper and code, batch norm, pooling, crop and all; such
            runs do not compare losses.
        seed: Of everything random: weights, batches, transforms, mining, the validation split.
    """

    terms: Literal["equal", "thesis", "published"] = "equal"
    seed: NonNegativeInt = 0
    data: DataRecipe = DataRecipe()
    network: NetworkRecipe = NetworkRecipe()
    loss: LossRecipe = LossRecipe()
    sampler: SamplerRecipe = SamplerRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    training: TrainingRecipe = TrainingRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()
    protocol: ProtocolRecipe = ProtocolRecipe()

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        return cls._choose_sampler(cls._lay_over_terms(values)) if isinstance(values, Mapping) else values

    @classmethod
    def _lay_over_terms(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the terms say, and over it what the recipe says."""
        kind = values.get("terms", "equal")
        if kind not in {THESIS, "published"}:
            return values
        loss, data, network = (
            _name_of(values.get(key, {}), model)
            for key, model in (("loss", LossRecipe), ("data", DataRecipe), ("network", NetworkRecipe))
        )
        return merged(
            terms_of_paper(loss) if kind == "published" else terms_of_thesis(loss, data, network), values
        )

    @classmethod
    def _choose_sampler(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        sampler = values.get("sampler", {})
        loss = values.get("loss", {})
        if not isinstance(sampler, Mapping) or not isinstance(loss, Mapping) or "name" in sampler:
            return values
        name = loss.get("name", LossRecipe.model_fields["name"].default)
        if name not in loss_registry:
            return values
        has_proxies = getattr(loss_registry.get(name), "needs_classes", False)
        return {**values, "sampler": {**sampler, "name": "random" if has_proxies else "balanced"}}

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
        """Check plain values; every mistake is a :class:`RecipeError` of one line.

        >>> Recipe.parse({"seeds": 1})
        Traceback (most recent call last):
        nearkin.recipe.recipe.RecipeError: recipe: unknown key seeds: did you mean seed?
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise RecipeError(f"{source}: {first_mistake(error, cls)}") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Recipe:
        """Read a TOML file and apply ``key=value`` overrides."""
        return cls.parse(override(read_toml(path, kind="recipe"), overrides), source=str(path))

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """This recipe with other values under dotted keys; ``None`` takes a value away.

        >>> Recipe().changed({"optimizer.lr": 0.1}).optimizer.lr
        0.1
        """
        values = self.to_dict()
        for key, value in changes.items():
            *path, last = key.split(".")
            table = values
            for part in path:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise RecipeError(f"unknown key {key}: {part} is a value, not a table")
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        return Recipe.parse(values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, complete, without those that are not set."""
        return self.model_dump(exclude_none=True, mode="json")

    def to_toml(self) -> str:
        """The whole recipe as TOML, defaults written out."""
        return tomli_w.dumps(self.to_dict())


def read_toml(path: str | os.PathLike[str], *, kind: str) -> dict[str, Any]:
    """The plain values of a TOML file; ``kind`` is what an error calls it."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no {kind} {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the {kind} {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None


def _name_of(table: Any, section: type[Choice]) -> str:
    default: str = section.model_fields["name"].default
    return table.get("name", default) if isinstance(table, Mapping) else default


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Plain values with ``table.key=value`` settings put over them; values are TOML, or else text.

    >>> override({"loss": {"margin": 0.1}}, ["loss.margin=0.2", "data.name=glyphs"])
    {'loss': {'margin': 0.2}, 'data': {'name': 'glyphs'}}
    """
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for setting in overrides:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise RecipeError(f"--set {setting}: write table.key=value, such as loss.margin=0.2")
        table = changed
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise RecipeError(f"--set {setting}: {part} is a value, not a table")
        table[path[-1]] = _value(text.strip())
    return changed


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake of a recipe or plan in one line: where it is, what is wrong, what was meant."""
    mistake = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        known = _keys_beside(mistake["loc"], model)
        return f"unknown key {place}: {nearest_name(str(mistake['loc'][-1]), known)}"
    reason = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] != "value_error":
        reason = f"{reason[0].lower()}{reason[1:]}, not {mistake['input']!r}"
    return f"{place}: {reason}" if place else reason


def _keys_beside(place: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    for part in place[:-1]:
        if isinstance(part, int):  # an entry of a list of tables
            continue
        annotation = model.model_fields[part].annotation
        possible = [annotation, *typing.get_args(annotation)]  # a table that may be left out is a union
        model = next(kind for kind in possible if inspect.isclass(kind) and issubclass(kind, BaseModel))
    return list(model.model_fields)
