"""The tables of a recipe, typed; every number has a finite range that its error names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator

from nearkin import losses
from nearkin.data.registry import registry as data_sets
from nearkin.data.transform_registry import registry as transforms
from nearkin.losses import Loss
from nearkin.losses.base import registry as loss_registry
from nearkin.losses.modifiers import in_order
from nearkin.losses.modifiers import registry as modifier_registry
from nearkin.networks import timm_models
from nearkin.networks.base import registry as networks
from nearkin.networks.pooling import poolings
from nearkin.protocols import chooses_on_test
from nearkin.protocols import registry as protocols
from nearkin.recipe import modifying
from nearkin.recipe.choices import LARGEST_SEED, PYTHON, Choice, Section
from nearkin.recipe.errors import first_mistake
from nearkin.sampling.base import registry as samplers
from nearkin.training import optimizers, schedules, trackers
from nearkin.training.settings import Selection
from nearkin.unlabelled import registry as methods

Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED, strict=True)]
Rate = Annotated[float, Field(ge=1e-12, le=1e4, strict=True)]
NonNegative = Annotated[float, Field(ge=0, le=1e6, strict=True)]
Positive = Annotated[float, Field(ge=1e-12, le=1e6, strict=True)]
Share = Annotated[float, Field(ge=1e-6, lt=1, strict=True)]
Word = Annotated[str, Field(min_length=1)]

IMAGE_TEXT = "image_text"
"""The network for pairs of images and texts: one for each."""
_OF_IMAGE_TEXT = frozenset({"image", "text", "image_weights", "image_pooling", "train_text"})


class TransformRecipe(Choice):
    """What becomes of a sample before the network sees it.

    Attributes:
        name: A registered transform, or ``module:object``: a factory ``(preprocessing, train, …)``, or a
            function that takes one sample.
    """

    registry = transforms
    given_elsewhere = frozenset({"preprocessing", "train"})

    @classmethod
    def keywords_of(cls, name: str) -> dict[str, Any] | None:
        """Those of a factory; a function of one sample takes its other parameters."""
        known = super().keywords_of(name)
        if known is not None and ":" in name and name not in transforms and not cls.is_factory(name):
            known.pop(next(iter(known), ""), None)
        return known

    @classmethod
    def is_factory(cls, name: str) -> bool:
        """Whether a name makes a transform, or is itself a function of one sample."""
        return name in transforms or "train" in inspect.signature(cls.maker(name)).parameters


class DataRecipe(Choice):
    """Which samples.

    Attributes:
        name: A registered data set. Where a recipe says only ``root``, ``folder`` for a folder and ``csv``
            for a file; without either, ``glyphs``.
        root: Its folder or file.
        transform: What becomes of a sample before the network sees it: a name, or a table with keywords.
        evaluation_transform: The same outside of training, where a transform is a function of one sample.
        views: How often a sample appears in its batch, each time transformed anew.
        workers: Processes that read samples; the batches are the same with any number.
        skip_bad: Leave images out that cannot be read, and say so in the result, instead of stopping.
    """

    root: Word | None = None
    transform: TransformRecipe = TransformRecipe()
    evaluation_transform: TransformRecipe | None = None
    views: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    workers: Annotated[int, Field(ge=0, le=1024, strict=True)] = 0
    skip_bad: bool = False

    registry = data_sets


class NetworkRecipe(Choice):
    """Sample to embedding.

    Attributes:
        name: A registered network, ``timm:NAME``, ``image_text`` for pairs of images and texts (its keywords
            are those of :class:`nearkin.language.ImageText`), or ``module:object`` that makes a
            ``torch.nn.Module``.
        embedding_dim: D; 64 by default, and for a module of one's own what it returns, without a head.
        pooling: How a feature map becomes features.
        layer_norm: Normalise features before the head.
        weights: ``imagenet``, or a file.
        freeze_batch_norm: Hold statistics and affine parameters of every batch norm still.
        head_lr_factor: Learning rate of the head, in multiples of the backbone's.
        pca_head: Let the head start as the principal components of the training samples' features.
        lora: Of a transformer only low-rank additions to its linear layers are trained, of this rank; they
            become part of the weights in the end.
        cached_trunk: A stage of the network, such as ``blocks.5``. Up to there nothing is trained, and what
            it makes of every image (resized, cropped at the centre, and mirrored) is computed once and kept
            on disk; only what comes after it runs in training.
        cached_crops: Random views of every training image that are computed and kept as well, made by
            ``data.transform``; training draws one of all views each time. Each takes as much disk.
        trunk_cache: The folder for that; by default in the user's cache.
        lr_decay: Factor of the learning rate from one block of the network to the one before it; 1 for the
            same everywhere.
    """

    name: str = "convnet"
    embedding_dim: Count | None = None
    pooling: str = "avg"
    layer_norm: bool = False
    weights: Word | None = None
    freeze_batch_norm: bool = False
    head_lr_factor: Positive = 1.0
    pca_head: bool = False
    lora: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    cached_trunk: str | None = None
    cached_crops: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    lr_decay: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    trunk_cache: str | None = None

    registry = networks

    @model_validator(mode="after")
    def _check_pooling(self) -> NetworkRecipe:
        poolings.get(self.pooling)
        return self

    @property
    def is_own_module(self) -> bool:
        """Whether it is a module of any kind, not one network for images of ours or timm's."""
        own = ":" in self.name and not self.name.startswith(timm_models.PREFIX)
        return (own or self.name == IMAGE_TEXT) and self.name not in networks

    @classmethod
    def unknown(cls, keyword: str, name: str, known: Iterable[str]) -> str:
        """A keyword may be meant for the networks of images and texts."""
        if keyword in _OF_IMAGE_TEXT:
            return f"{keyword} is for pairs of images and texts: say network.name={IMAGE_TEXT} as well"
        return super().unknown(keyword, name, known)

    @classmethod
    def maker(cls, name: str) -> Callable[..., Any]:
        """Timm's models have names of their own."""
        if name.startswith(timm_models.PREFIX):
            if name == timm_models.PREFIX:
                raise ValueError("timm: needs a model's name, such as timm:resnet50")
            return timm_models.timm_backbone
        if name == IMAGE_TEXT:
            from nearkin.language import ImageText  # noqa: PLC0415  (few need it)

            return ImageText
        return super().maker(name)


class SamplerRecipe(Choice):
    """Which samples form a batch.

    Attributes:
        name: A registered sampler. Where a recipe does not say, ``balanced`` for losses that compare the
            samples of a batch, which need several of a class, and ``random`` for losses with proxies.
        batch_size: Samples per batch; 180 by default, or what the classes allow.
    """

    batch_size: Count | None = None

    registry = samplers
    given_elsewhere = frozenset({"labels", "seed", "rank", "world_size", "pairs"})


class ModifierRecipe(Choice):
    """What goes around the loss: a table of ``[loss]`` under the modifier's name, with its keywords."""

    registry = modifier_registry
    given_elsewhere = frozenset(modifying.GIVEN)

    @classmethod
    def maker(cls, name: str) -> Callable[..., Any]:
        """What a recipe says about language and teachers are words, not objects."""
        return modifying.maker(name)

    def around(self, loss: Loss, setting: modifying.Setting | None = None) -> Loss:
        """The modifier around a loss; without a setting around an example of one, to check its keywords."""
        assert self.name is not None
        try:
            return modifying.modified(self.name, loss, self.keywords, setting)
        except ValueError as error:
            raise ValueError(f"[loss.{self.name}] {error}") from None


class LossRecipe(Choice):
    """The loss and its hyperparameters.

    A table under the name of a modifier (``[loss.memory]``, ``[loss.matryoshka]``) puts that around it;
    several are applied in the order of :func:`nearkin.losses.modifiers.in_order`.

    Attributes:
        name: A registered loss, or ``module:object``: a class of losses, or a function ``(embeddings,
            labels) → scalar`` whose further parameters are keywords.
        lr: Learning rate of its proxies or boundaries; by default ``lr_factor`` times the network's.
        lr_factor: Used where ``lr`` is not given.
        sample: For a loss with proxies, the share of the classes outside a batch that it is compared with;
            all by default. Needs ``adamw``, ``adam`` or ``sgd``.
        tile: For a loss with proxies, classes that are compared at a time; by default all, where they fit.
        storage: In which precision proxies are kept: ``float32`` (the default), ``bfloat16`` or ``float16``.
        memory_map: A folder for a file that proxies are kept in, mapped into memory; in memory by default.
        sharded: Whether, under ``torchrun``, each process keeps the proxies of its own share of the classes;
            by default every process has all. In one process it changes nothing.
    """

    name: str = "proxy_anchor"
    lr: Rate | None = None
    lr_factor: Positive = 10.0
    sample: Annotated[float, Field(gt=0, le=1)] | None = None
    tile: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    storage: Literal["float32", "bfloat16", "float16"] | None = None
    memory_map: Word | None = None
    sharded: bool | None = None

    registry = loss_registry
    given_elsewhere = frozenset({"num_classes", "embedding_dim", "generator", "embeddings", "labels"})

    @property
    def modifiers(self) -> tuple[ModifierRecipe, ...]:
        """What goes around the loss, from the innermost."""
        tables = self._modifier_tables()
        return tuple(_modifier(name, tables[name]) for name in in_order(tables))

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the loss itself."""
        tables = self._modifier_tables()
        return {key: value for key, value in super().keywords.items() if key not in tables}

    def _modifier_tables(self) -> dict[str, Mapping[str, Any]]:
        extra = self.model_extra or {}
        return {
            key: table
            for key, table in extra.items()
            if isinstance(table, Mapping) and key in modifier_registry
        }

    @classmethod
    def unknown(cls, keyword: str, name: str, known: Iterable[str]) -> str:
        """A keyword may be meant to be a modifier."""
        if keyword in modifier_registry:
            return f"{keyword} is a modifier: write its keywords into a table, [loss.{keyword}]"
        return super().unknown(keyword, name, [*known, *modifier_registry])

    @model_validator(mode="after")
    def _check_values(self) -> LossRecipe:
        example = None
        if self.name in loss_registry:
            example = losses.build(
                self.name,
                num_classes=2,
                embedding_dim=2,
                sample=self.sample,
                tile=self.tile,
                storage=self.storage,
                **self.keywords,
            )
        if self.sharded:
            self._check_division(example)
        for modifier in self.modifiers:
            example = None if example is None else modifier.around(example)
        return self

    def _check_division(self, example: losses.Loss | None) -> None:
        """Say what cannot be divided among processes, before there are any."""
        if self.modifiers:
            raise ValueError(
                f"sharded=true: [loss.{self.modifiers[0].name}] needs all classes in each process"
            )
        if isinstance(example, losses.ProxyLoss):
            example.shard(0, 1)
        elif example is not None:
            raise ValueError(f"sharded=true: loss {self.name!r} has no proxies, which sharded is about")


def _modifier(name: str, table: Mapping[str, Any]) -> ModifierRecipe:
    """A modifier's table, checked; its errors say which."""
    try:
        return ModifierRecipe(**{**table, "name": name})
    except ValidationError as error:
        raise ValueError(f"[loss.{name}] {first_mistake(error, ModifierRecipe)}") from None


class UnlabelledRecipe(Choice):
    """How samples without a label are learnt from, of protocols that have such samples.

    Attributes:
        name: ``instance``, ``pseudo_labels`` or ``stml``; by default they are left out. The recipe's loss
            learns from the samples with a label, if there are any.
        weight: Of the method beside that loss.
        batch_size: Samples without a label in each batch, beside those of the sampler; all of them where they
            are fewer.
    """

    weight: NonNegative = 1.0
    batch_size: Count = 120

    registry = methods

    @model_validator(mode="after")
    def _check_values(self) -> UnlabelledRecipe:
        if self.name is not None and not self.name.startswith(PYTHON):
            _made(self)
        return self


class OptimizerRecipe(Choice):
    """How weights move.

    Attributes:
        name: ``adamw``, ``adam``, ``sgd`` (momentum 0.9), ``rmsprop``, or any of torch's and timm's:
            ``torch:RAdam``, ``timm:lamb``. Its other keywords stand beside, such as ``betas``.
        lr: Learning rate of the network.
        weight_decay: The weight decay of the network and the loss's parameters.
        clip: Largest norm of the network's gradient; none by default. Proxies are not clipped.
        clip_value: Largest size of every single entry of the gradient, of the network's and of proxies.
    """

    name: str = "adamw"
    lr: Rate = 2e-3
    weight_decay: NonNegative = 1e-4
    clip: Positive | None = None
    clip_value: Positive | None = None

    registry = optimizers.registry
    given_elsewhere = frozenset({"params"})

    @classmethod
    def maker(cls, name: str) -> Callable[..., Any]:
        """Torch's and timm's optimisers have names of their own."""
        return optimizers.find(name) if name.startswith(("torch:", "timm:")) else super().maker(name)

    @model_validator(mode="after")
    def _check_values(self) -> OptimizerRecipe:
        if self.name in self.registry:
            example = [torch.zeros(2, 2, requires_grad=True)]
            self.registry.build(
                self.name, example, lr=self.lr, weight_decay=self.weight_decay, **self.keywords
            )
        return self


class ScheduleRecipe(Choice):
    """How the learning rate changes.

    Attributes:
        name: ``cosine`` to 0, ``step`` (times ``factor`` every ``every`` epochs), ``multi_step`` (times
            ``factor`` at every one of ``milestones``), or ``constant``.
        warmup: Epochs of linear rise from 0, before anything else.
    """

    name: str = "cosine"
    warmup: Annotated[float, Field(ge=0, le=1e5, strict=True)] = 0.5

    registry = schedules.registry

    @model_validator(mode="after")
    def _check_values(self) -> ScheduleRecipe:
        if not self.name.startswith(PYTHON):
            _made(self)
        return self


class TrackerRecipe(Choice):
    """Where metrics go beside ``metrics.jsonl``: ``tensorboard`` or ``wandb``."""

    name: str

    registry = trackers.registry
    given_elsewhere = frozenset({"run"})


class TrainingRecipe(Section):
    """How long and in which precision.

    Attributes:
        epochs: Passes over the training samples.
        minutes: How long the run may take on this machine, whose speed is measured first: epochs, and how
            much of a pretrained network is trained, are chosen to fit. Where ``epochs`` are said, they count.
        stop_after: Stop after this epoch, of the same schedule: where a validation found the best one.
        head_only: Epochs at the beginning in which the backbone is held still and head and loss learn.
        precision: ``fp32``, ``bf16`` or ``fp16`` (mixed).
        checkpoint_minutes: A run that is killed loses at most this much; every epoch's end is kept as well.
        accumulate: Batches per step of the optimiser, which follows the mean of their losses. Pairs are still
            those of one batch; ``chunk`` is for large batches of pairs.
        chunk: Samples that are in memory with all their activations at a time. The loss sees the whole batch
            and its gradients are exact; the network runs forward twice. Not with a trained batch norm.
        ema: Decay of a moving average of the weights, such as 0.999. The average is what is validated,
            selected and kept.
        trackers: ``tensorboard`` and ``wandb``, where they are installed, beside ``metrics.jsonl``: names, or
            tables with keywords.
    """

    epochs: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 12
    minutes: Annotated[float, Field(ge=0.1, le=1e5, strict=True)] | None = None
    stop_after: Count | None = None
    head_only: CountOrZero = 0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    checkpoint_minutes: Annotated[float, Field(ge=1e-9, le=1e5, strict=True)] = 5.0
    accumulate: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 1
    chunk: Count | None = None
    ema: Share | None = None
    trackers: tuple[TrackerRecipe, ...] = ()

    @model_validator(mode="after")
    def _check_last_epoch(self) -> TrainingRecipe:
        if self.stop_after is not None and self.stop_after > self.epochs:
            raise ValueError(f"stop_after={self.stop_after} lies after the last of {self.epochs} epochs")
        return self


class EvaluationRecipe(Section):
    """What is scored.

    Attributes:
        recall_at: The values of k.
        select: What selects the epoch on validation classes: ``recall``, the first Recall@k (of equals,
            MAP@R), or ``map_at_r``, which still moves where nearly every nearest neighbour is right.
            ``recall`` by default, and for fine-tuned networks ``map_at_r``. ``roc_auc``, of known pairs, is
            for data of pairs, and the default there.
        false_accept_rate: For which the threshold between same and different is chosen, at the end of
            training and on the validation classes. A finished run keeps its threshold.
        batch_size: Samples per batch.
    """

    recall_at: tuple[Count, ...] = Field(default=(1, 2, 4, 8), min_length=1, max_length=100)
    select: Selection | None = None
    false_accept_rate: Share = 0.01
    batch_size: Count = 500


class ProtocolRecipe(Choice):
    """How the run is selected and tested.

    Attributes:
        name: ``fixed_validation``: the epoch with the best validation score, over classes that are held out
            of training (``validation_share``). ``cross_validation``: a network per fold of the training
            classes, each selected on its fold (``folds``, ``fold``). ``standard``: all classes train, and the
            last epoch counts. ``standard_best_on_test``: the same, and the test classes choose the epoch,
            which makes their score too good. ``retrained``: validation classes choose the epoch, and
            a new network is trained that long on all classes. ``closed_set``: images of the classes trained
            on are held out.
        audit: Keep the network of every epoch apart, and score all of them on the test classes after the
            selection is made: ``audit.json`` then says what choosing on test would have claimed. Selection
            and scores are the same with it. Takes the disk of a network per epoch until the end.
    """

    name: str = "fixed_validation"
    audit: bool = False

    registry = protocols

    @model_validator(mode="after")
    def _check_values(self) -> ProtocolRecipe:
        if not self.name.startswith(PYTHON):
            _made(self)
        if self.audit and chooses_on_test(self.name):
            raise ValueError(
                f"protocol.audit says what choosing on test would have claimed, and {self.name} chooses on "
                "test: audit a protocol that does not"
            )
        return self


def _made(choice: Choice) -> Any:
    assert choice.name is not None
    return type(choice).maker(choice.name)(**choice.keywords)


SECTIONS: Mapping[str, type[Section]] = {
    "data": DataRecipe,
    "network": NetworkRecipe,
    "loss": LossRecipe,
    "sampler": SamplerRecipe,
    "unlabelled": UnlabelledRecipe,
    "optimizer": OptimizerRecipe,
    "schedule": ScheduleRecipe,
    "training": TrainingRecipe,
    "evaluation": EvaluationRecipe,
    "protocol": ProtocolRecipe,
}
