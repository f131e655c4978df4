"""From names to objects: the task that a recipe describes."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.optim import Optimizer

from nearkin import losses, networks, sampling
from nearkin.data import DataSet, PerSample, Preprocessing, SampleSet, Texts, TwoModalities, Vectors
from nearkin.data.image_and_text import IMAGE_AND_TEXT
from nearkin.data.per_sample import as_transform
from nearkin.data.transforms import Transform
from nearkin.language import ImageText
from nearkin.losses.base import Loss
from nearkin.losses.base import registry as loss_registry
from nearkin.losses.modifiers.distil import EMA
from nearkin.networks import Embedder, Network, TwoTowers, WrappedNetwork, as_network, freeze_batch_norm
from nearkin.networks.base import Backbone, EmbeddingNetwork, refuse_pooling
from nearkin.observer import Observer
from nearkin.open_files import allow_open_files
from nearkin.recipe.budget import Budgeted
from nearkin.recipe.choices import PYTHON, Choice
from nearkin.recipe.disclosure import disclosure
from nearkin.recipe.known_pairs import (
    choices_for_pairs,
    of_known_pairs,
    refuse_for_pairs,
    refuse_too_few_pairs,
)
from nearkin.recipe.modalities import across, choices_for_modalities, refuse_for_modalities
from nearkin.recipe.modifying import Setting, read_teacher
from nearkin.recipe.opening import arranged, open_data
from nearkin.recipe.photographs import (
    choice_for_few_classes,
    choices_for_images,
    choices_for_minutes,
    fitting_minutes,
)
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import (
    IMAGE_TEXT,
    LossRecipe,
    NetworkRecipe,
    OptimizerRecipe,
    ProtocolRecipe,
    SamplerRecipe,
    ScheduleRecipe,
    TrackerRecipe,
    TransformRecipe,
    UnlabelledRecipe,
)
from nearkin.recipe.telling import told
from nearkin.recipe.writing import write_toml
from nearkin.sampling.base import PlannedSampler
from nearkin.training import Description, LearningRates, Protocol, Schedule, Task, TrainingSettings
from nearkin.training.task import LossMaker, SamplerMaker
from nearkin.training.trackers import require_tracker
from nearkin.unlabelled import Method
from nearkin.unlabelled import Setting as UnlabelledSetting

_LOOKED_AT = 8  # images, spread over all of them


def build_task(
    recipe: Recipe,
    observer: Observer | None = None,
    *,
    data: DataSet | None = None,
    remembered: Mapping[str, tuple[Any, str]] | None = None,
) -> Task:
    """The objects that a recipe names, and everything checked that can be known before anything runs.

    Args:
        recipe: What to build.
        observer: Hears what is being done.
        data: The data set, where it is open already.
        remembered: What was chosen when the run began, with the reasons; it is not chosen anew.
    """
    observer = observer or Observer()
    allow_open_files(recipe.data.workers)
    _built(recipe, "protocol", ProtocolRecipe, Protocol)  # says what is wrong with it before data is opened
    trackers = tuple(_tracker(one) for one in recipe.training.trackers)
    data_set = data if data is not None else open_data(recipe, observer)
    said = recipe
    recipe, data_set, protocol, chosen = fitted_to(recipe, data_set, remembered, observer)
    whole = recipe.resolved()
    embedder, reasons = build_embedder(whole, data_set, observer)
    chosen |= reasons
    unlabelled = _unlabelled(whole)
    loss = _loss_maker(whole, embedder.network.num_features, unlabelled)
    _check_modifiers(whole, embedder.network)
    lr = whole.optimizer.lr
    rates = LearningRates(
        network=lr,
        head=whole.network.head_lr_factor * lr,
        loss=whole.loss.lr or whole.loss.lr_factor * lr,
        decay=whole.network.lr_decay,
    )
    complete = recipe.complete()
    description = Description(write_toml(said, complete=complete, chosen=chosen), complete, chosen)
    task = Task(
        data=data_set,
        embedder=embedder,
        loss=loss,
        sampler=_sampler_maker(whole, unlabelled),
        optimizer=_optimizer_maker(whole),
        rates=rates,
        schedule=Schedule(_built(whole, "schedule", ScheduleRecipe, object), whole.schedule.warmup),
        protocol=protocol,
        settings=training_settings(whole),
        seed=whole.seed,
        pretrained=whole.network.weights is not None or whole.network.is_own_module,
        unlabelled=unlabelled,
        trackers=trackers,
        description=description,
        audit=whole.protocol.audit,
    )
    _check_batches(task)
    if any(key.startswith("network.name") for key in chosen):
        for line in told(whole, task):
            observer.tell(line)
    example = _base_loss_maker(whole)(2, embedder.network.embedding_dim, torch.Generator())
    of_known_pairs(example, data_set.train)  # says whether the loss needs classes
    learns = next(example.parameters(), None) is not None
    origins = {key: f"ours: {chosen[key]}" if key in chosen else one for key, one in said.origins().items()}
    return replace(task, disclosure=disclosure(whole, task, loss_learns=learns, origins=origins))


def fitted_toml(recipe: Recipe) -> str:
    """A recipe as TOML with everything that is chosen to fit its data in comments, with the reasons.

    Raises:
        ValueError: The data set cannot be opened.
    """
    fitted, _, _, chosen = fitted_to(recipe, open_data(recipe))
    return write_toml(recipe, complete=fitted.complete(), chosen=chosen)


def shown_toml(recipe: Recipe) -> tuple[str, Exception | None]:
    """A recipe with all that would be chosen for its data; where that is not there, as far as it is known.

    Returns:
        The text, and why what depends on the data is not in it.
    """
    try:
        return fitted_toml(recipe), None
    except (ValueError, OSError) as error:
        return recipe.to_toml(), error


def training_settings(recipe: Recipe) -> TrainingSettings:
    """The plain numbers of a recipe's training."""
    training = recipe.training
    return TrainingSettings(
        epochs=training.epochs,
        stop_after=training.stop_after,
        head_only=training.head_only,
        precision=training.precision,
        checkpoint_minutes=training.checkpoint_minutes,
        accumulate=training.accumulate,
        chunk=training.chunk,
        ema=training.ema,
        clip=recipe.optimizer.clip,
        clip_value=recipe.optimizer.clip_value,
        pca_head=recipe.network.pca_head,
        lora=recipe.network.lora,
        views=recipe.data.views,
        recall_at=recipe.evaluation.recall_at,
        select=recipe.evaluation.select or "recall",
        false_accept_rate=recipe.evaluation.false_accept_rate,
        sharded=bool(recipe.loss.sharded),
        sizes=next(
            (tuple(one.keywords["sizes"]) for one in recipe.loss.modifiers if one.name == "matryoshka"), ()
        ),
    )


def fitted_to(
    recipe: Recipe,
    data_set: DataSet,
    remembered: Mapping[str, tuple[Any, str]] | None = None,
    observer: Observer | None = None,
) -> tuple[Recipe, DataSet, Protocol, dict[str, str]]:
    """The recipe with what fits its data, where it leaves that open; data and protocol; all reasons."""
    if remembered:
        choices = dict(remembered)
    else:
        choices = choices_for_images(recipe, data_set) | choice_for_few_classes(recipe, data_set)
        choices |= choices_for_pairs(recipe, data_set) | choices_for_modalities(recipe, data_set)
    fitted = _with(recipe, choices)
    refuse_for_pairs(fitted, data_set)
    refuse_for_modalities(fitted, data_set)
    data_set = _arranged_anew(recipe, fitted, data_set)
    protocol: Protocol = _built(fitted, "protocol", ProtocolRecipe, Protocol)
    if not remembered:
        budget = choices_for_minutes(recipe, fitted, data_set, protocol, observer or Observer())
        fitted = _with(fitted, budget)
        batch = _fitting_batch(recipe, fitted, data_set, protocol)
        fitted = _with(fitted, batch)
        choices = {key: one for key, one in (choices | budget | batch).items() if one[0] is not None}
    reasons = {key: reason for key, (_, reason) in {**recipe.choices(), **choices}.items()}
    return fitted, data_set, protocol, reasons


def fit_to_minutes(
    recipe: Recipe, data_set: DataSet, minutes: float, *, runs: int, observer: Observer
) -> tuple[Budgeted, int]:
    """What fits into the minutes where so many runs of this kind share them; and the usual epochs of one.

    Args:
        recipe: Of one of the runs.
        data_set: Its data set.
        minutes: The budget of all runs.
        runs: How many.
        observer: Hears what is measured.
    """
    choices = choices_for_images(recipe, data_set) | choice_for_few_classes(recipe, data_set)
    fitted = _with(recipe, choices)
    data_set = _arranged_anew(recipe, fitted, data_set)
    protocol: Protocol = _built(fitted, "protocol", ProtocolRecipe, Protocol)
    found = fitting_minutes(recipe, fitted, data_set, protocol, minutes=minutes, observer=observer, runs=runs)
    return found, fitted.training.epochs


def _arranged_anew(said: Recipe, fitted: Recipe, data_set: DataSet) -> DataSet:
    """A data set that is open, in the splits of a protocol that was chosen after it was opened."""
    return data_set if fitted.protocol == said.protocol else arranged(fitted, data_set)


def _with(recipe: Recipe, choices: Mapping[str, tuple[Any, str]]) -> Recipe:
    return recipe.changed({key: value for key, (value, _) in choices.items()}) if choices else recipe


def _fitting_batch(
    said: Recipe, recipe: Recipe, data_set: DataSet, protocol: Protocol
) -> dict[str, tuple[Any, str]]:
    """A batch that the data can fill, where nobody says how large it is."""
    wanted = recipe.resolved().sampler
    if said.sampler.batch_size is not None or wanted.name not in {"balanced", "random"}:
        return {}
    samples = protocol.fewest(data_set.without_test(), recipe.seed).labelled_part()
    assert wanted.batch_size is not None
    if not len(samples):  # without labels, batches are those of the method that learns so
        return {}
    if wanted.name == "random":
        if len(samples) >= wanted.batch_size:
            return {}
        return {"sampler.batch_size": (len(samples), f"there are {len(samples)} training samples")}
    per_class = wanted.keywords.get(
        "images_per_class", SamplerRecipe.defaults_of("balanced")["images_per_class"]
    )
    batch_size, fitting = sampling.fitting(samples.labels, wanted.batch_size, per_class)
    if (batch_size, fitting) == (wanted.batch_size, per_class):
        return {}
    few_classes = "{} training classes with {} samples of each cannot fill a batch of {}".format
    found: dict[str, tuple[Any, str]] = {}
    if batch_size != wanted.batch_size:
        found["sampler.batch_size"] = (
            batch_size,
            few_classes(samples.num_classes, fitting, wanted.batch_size),
        )
    if "images_per_class" not in wanted.keywords and fitting != per_class:
        found["sampler.images_per_class"] = (
            fitting,
            f"most training classes have fewer than {per_class} samples"
            if fitting < per_class
            else few_classes(samples.num_classes, per_class, wanted.batch_size),
        )
    return found


def _check_batches(task: Task) -> None:
    """Make the sampler once, so that classes that cannot fill a batch are told before anything takes time."""
    data = task.data.without_test()
    _, validation = task.protocol.split(data, task.seed)
    fewest = task.learnt(task.protocol.fewest(data, task.seed))
    task.batches(fewest)
    if validation is not None and validation.pairs is not None:
        refuse_too_few_pairs(validation.pairs)
    alone = not isinstance(data.train.samples, TwoModalities)  # where a pair is its own positive
    if validation is not None and alone and int(torch.bincount(validation.labels).max()) < 2:
        raise ValueError(
            "no validation class has two samples, so that nothing can be found there: hold out others "
            "(another seed, a larger protocol.validation_share), or choose protocol.name=standard"
        )


def _built(recipe: Recipe, key: str, section: type[Choice], kind: type[Any]) -> Any:
    """A choice without further arguments, made; one that was given in Python is taken."""
    choice = getattr(recipe, key)
    if choice.name.startswith(PYTHON):
        given = _given(recipe, key)
        if not isinstance(given, kind):
            raise ValueError(
                f"the {key} that was given is of the type {type(given).__name__}, which is no "
                f"{kind.__name__}: derive it from {kind.__module__}.{kind.__name__}"
            )
        return given
    built = section.maker(choice.name)(**choice.keywords)
    if kind is not object and not isinstance(built, kind):
        raise ValueError(f"{key}.name={choice.name} makes {type(built).__name__}, not a {kind.__name__}")
    return built


def _given(recipe: Recipe, key: str) -> Any:
    if key not in recipe.objects:
        name = getattr(recipe, key).name.removeprefix(PYTHON)
        raise ValueError(
            f"the {key} of this recipe was given in Python ({name}): pass it again, {key}=…, or name it as "
            "module:object"
        )
    return recipe.objects[key]


def _tracker(choice: TrackerRecipe) -> Callable[..., Observer]:
    assert choice.name is not None
    maker = TrackerRecipe.maker(choice.name)
    require_tracker(maker)
    return functools.partial(maker, **choice.keywords)


def _unlabelled(recipe: Recipe) -> Method | None:
    """How samples without a label are learnt from, checked against the views of the recipe."""
    if recipe.unlabelled.name is None:
        return None
    method: Method = _built(recipe, "unlabelled", UnlabelledRecipe, Method)
    if recipe.data.views < method.views:
        raise ValueError(
            f"unlabelled.name={recipe.unlabelled.name} compares {method.views} views of a sample: set "
            f"data.views={method.views}"
        )
    return method


def _sampler_maker(recipe: Recipe, unlabelled: Method | None) -> SamplerMaker:
    alone = _labelled_sampler_maker(recipe)
    if unlabelled is None:
        return alone

    def make(
        labels: Tensor, *, seed: int, rank: int, world_size: int, pairs: Tensor | None = None
    ) -> PlannedSampler:
        if bool((labels >= 0).all()):
            return alone(labels, seed=seed, rank=rank, world_size=world_size, pairs=pairs)
        return unlabelled.batches(
            labels,
            lambda known: alone(known, seed=seed, rank=0, world_size=1),
            batch_size=recipe.unlabelled.batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )

    return make


def _labelled_sampler_maker(recipe: Recipe) -> SamplerMaker:
    settings = recipe.sampler
    assert settings.name is not None
    maker = None if settings.name.startswith(PYTHON) else SamplerRecipe.maker(settings.name)

    def make(
        labels: Tensor, *, seed: int, rank: int, world_size: int, pairs: Tensor | None = None
    ) -> PlannedSampler:
        made = maker or _given(recipe, "sampler")
        _refuse_instance("sampler", made, "(labels, batch_size=…, seed=…, rank=…, world_size=…)")
        known = {"pairs": pairs} if "pairs" in inspect.signature(made).parameters else {}
        sampler: PlannedSampler = made(
            labels,
            batch_size=settings.batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            **known,
            **settings.keywords,
        )
        if not isinstance(sampler, PlannedSampler):
            raise ValueError(
                f"the sampler {type(sampler).__name__} is no nearkin.sampling.PlannedSampler, whose epochs "
                "are planned so that a run can go on anywhere: derive from it, or from BalancedSampler"
            )
        return sampler

    return make


def _optimizer_maker(recipe: Recipe) -> Callable[[list[dict[str, Any]]], Optimizer]:
    settings = recipe.optimizer
    maker = (
        _given(recipe, "optimizer")
        if settings.name.startswith(PYTHON)
        else OptimizerRecipe.maker(settings.name)
    )

    _refuse_instance("optimizer", maker, "(params, lr=…, weight_decay=…)")

    def make(groups: list[dict[str, Any]]) -> Optimizer:
        optimizer: Optimizer = maker(
            groups, lr=settings.lr, weight_decay=settings.weight_decay, **settings.keywords
        )
        return optimizer

    return make


def _refuse_instance(key: str, given: Any, arguments: str) -> None:
    """Say that what was given is made already, and not what makes it."""
    if not callable(given):
        raise ValueError(
            f"{key} must be a class or function {arguments}, which a run calls itself, not an object of the "
            f"type {type(given).__name__}"
        )


def _loss_maker(recipe: Recipe, num_features: int, unlabelled: Method | None) -> LossMaker:
    base = _base_loss_maker(recipe)
    labelled = _labelled_loss_maker(recipe, num_features)
    if unlabelled is None:
        return labelled

    def make(samples: SampleSet, embedding_dim: int, generator: torch.Generator, observer: Observer) -> Loss:
        loss = labelled(samples, embedding_dim, generator, observer) if samples.num_classes else None
        setting = UnlabelledSetting(
            num_features, generator, loss=lambda classes: base(classes, embedding_dim, generator)
        )
        return unlabelled.beside(loss, setting, recipe.unlabelled.weight)

    return make


def _labelled_loss_maker(recipe: Recipe, num_features: int) -> LossMaker:
    settings = recipe.loss
    base = _base_loss_maker(recipe)

    def make(samples: SampleSet, embedding_dim: int, generator: torch.Generator, observer: Observer) -> Loss:
        two = isinstance(samples.samples, TwoModalities)
        embedding_dim = embedding_dim // 2 if two else embedding_dim
        loss = of_known_pairs(base(samples.num_classes, embedding_dim, generator), samples)
        setting = Setting(
            samples=samples,
            num_features=num_features,
            embedding_dim=embedding_dim,
            generator=generator,
            observer=observer,
            data_name=recipe.data.name or "",
            workers=recipe.data.workers,
        )
        for modifier in settings.modifiers:
            loss = modifier.around(loss, setting)
        return across(loss, samples)

    return make


def _check_modifiers(recipe: Recipe, network: Network) -> None:
    """Say what a modifier cannot do with this network, before anything takes time."""
    for modifier in recipe.loss.modifiers:
        keywords = modifier.keywords
        if modifier.name == "matryoshka" and max(keywords["sizes"]) > network.embedding_dim:
            raise ValueError(
                f"loss.matryoshka.sizes={list(keywords['sizes'])}: {max(keywords['sizes'])} is more than "
                f"network.embedding_dim={network.embedding_dim}"
            )
        if modifier.name == "distil" and keywords.get("teacher", EMA) != EMA:
            read_teacher(keywords["teacher"])


def _base_loss_maker(recipe: Recipe) -> Callable[[int, int, torch.Generator], Loss]:
    settings = recipe.loss
    if settings.name.startswith(PYTHON):
        given = _given(recipe, "loss")
        return lambda classes, size, generator: losses.as_loss(copy.deepcopy(given))
    if settings.name in loss_registry:
        return lambda classes, size, generator: losses.build(
            settings.name,
            num_classes=classes,
            embedding_dim=size,
            generator=generator,
            sample=settings.sample,
            tile=settings.tile,
            storage=settings.storage,
            memory_map=settings.memory_map,
            **settings.keywords,
        )
    maker = LossRecipe.maker(settings.name)
    return lambda classes, size, generator: losses.as_loss(
        _own_loss(maker, settings.keywords, classes, size, generator)
    )


def _own_loss(
    maker: Any, keywords: dict[str, Any], classes: int, size: int, generator: torch.Generator
) -> Any:
    """A class of losses made, or a function of embeddings and labels with its keywords."""
    if not inspect.isclass(maker):
        return functools.partial(maker, **keywords) if keywords else maker
    known = inspect.signature(maker).parameters
    sizes = {"num_classes": classes, "embedding_dim": size, "embedding_size": size, "generator": generator}
    return maker(**{key: value for key, value in sizes.items() if key in known}, **keywords)


def build_embedder(
    recipe: Recipe, data_set: DataSet, observer: Observer | None = None
) -> tuple[Embedder, dict[str, str]]:
    """The recipe's network with its transforms, and why these were chosen where the recipe says none."""
    observer = observer or Observer()
    observer.stage(f"building {recipe.network.name}")
    own = recipe.network.is_own_module
    if not own:
        _refuse_what_is_no_image(recipe, data_set.train)
    module = _own_module(recipe) if own else build_network(recipe)
    preprocessing = recipe.objects.get("preprocessing")
    if preprocessing is None and isinstance(module, Network | TwoTowers):
        preprocessing = module.preprocessing
    training, evaluation, spec, reasons = _transforms(recipe, data_set.train, preprocessing)
    if own:
        example = evaluation(data_set.train.samples, [0, min(1, len(data_set.train) - 1)], [0, 1])
        module = _own_network(recipe, module, example, preprocessing)
    network: Network = module
    if recipe.network.freeze_batch_norm:
        freeze_batch_norm(network)
    if network.preprocessing is not None:
        # This memory order is up to twice as fast, on CPUs as on GPUs.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cache = recipe.network.trunk_cache
    embedder = Embedder(
        network,
        training_transform=training,
        evaluation_transform=evaluation,
        trunk=recipe.network.cached_trunk,
        trunk_cache=None if cache is None else Path(cache),
        trunk_crops=recipe.network.cached_crops,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.data.workers,
        transform_spec=spec,
    )
    return embedder, reasons


def _refuse_what_is_no_image(recipe: Recipe, samples: SampleSet) -> None:
    """Registered networks take images: say so before torch does, unless a transform makes images."""
    kinds = {Texts: "texts", Vectors: "vectors", TwoModalities: "pairs of two modalities"}
    kind = next((name for one, name in kinds.items() if isinstance(samples.samples, one)), None)
    has_transform = recipe.data.transform.name is not None or "data.transform" in recipe.objects
    if kind is not None and not has_transform:
        if isinstance(samples.samples, TwoModalities):
            raise ValueError(
                f"network {recipe.network.name} takes images, and the samples are {kind}, which need two "
                f"networks: say network.name={IMAGE_TEXT} and network.image={recipe.network.name}, or give "
                "network= a nearkin.networks.TwoTowers"
            )
        raise ValueError(
            f"network {recipe.network.name} takes images, and the samples are {kind}: give network= a "
            f"torch.nn.Module that takes a batch of {kind}"
        )


def build_network(recipe: Recipe) -> Network:
    """A network of ours or timm's."""
    settings = recipe.resolved().network
    assert settings.embedding_dim is not None
    return networks.build(
        settings.name,
        embedding_dim=settings.embedding_dim,
        pooling=settings.pooling,
        layer_norm=settings.layer_norm,
        weights=settings.weights,
        seed=recipe.seed,
        **settings.keywords,
    )


def _own_module(recipe: Recipe) -> Any:
    """What a recipe names that is no network of ours, or what was given in Python."""
    settings = recipe.network
    if settings.name.startswith(PYTHON):
        return copy.deepcopy(_given(recipe, "network"))
    maker = NetworkRecipe.maker(settings.name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return maker(**settings.keywords, **_own_size(maker, settings))


def _own_size(maker: Callable[..., Any], settings: NetworkRecipe) -> dict[str, Any]:
    """The size of the embedding, for a network that takes it itself."""
    own = inspect.signature(maker).parameters.get("embedding_dim")
    takes_it = own is not None
    if own is not None and own.default is own.empty and settings.embedding_dim is None:
        raise ValueError(f"{settings.name} needs the size of an embedding: say network.embedding_dim")
    return {"embedding_dim": settings.embedding_dim} if takes_it and settings.embedding_dim else {}


def _own_network(recipe: Recipe, module: Any, example: Any, preprocessing: Preprocessing | None) -> Network:
    """Anybody's module, with a head where the recipe asks for one."""
    settings = recipe.network
    spec: dict[str, Any] | None = None
    size: dict[str, Any] = {}
    if not settings.name.startswith(PYTHON):
        size = _own_size(NetworkRecipe.maker(settings.name), settings)
        spec = {"object": settings.name, "keywords": settings.keywords | size}
    if isinstance(module, Backbone):
        return EmbeddingNetwork(module, embedding_dim=settings.embedding_dim or 64, pooling=settings.pooling)
    refuse_pooling(settings.pooling)
    if settings.weights is not None and isinstance(module, nn.Module):
        state = networks.weights.read_state(settings.weights)
        module.load_state_dict(state)
    network = as_network(
        module,
        example,
        embedding_dim=None if size else settings.embedding_dim,
        preprocessing=preprocessing,
        seed=recipe.seed,
    )
    if isinstance(network, WrappedNetwork):
        network.spec = module.spec if isinstance(module, ImageText) else spec
    return network


def _transforms(
    recipe: Recipe, samples: SampleSet, preprocessing: Preprocessing | None
) -> tuple[Transform, Transform, dict[str, Any] | None, dict[str, str]]:
    """Of training and of evaluation, how to make the latter again, and why they were chosen."""
    settings = recipe.data
    choice, reasons = settings.transform, {}
    if choice.name is None and "data.transform" not in recipe.objects:
        name, reason = _fitting_transform(samples, preprocessing)
        choice, reasons = (
            TransformRecipe(name=name, **choice.keywords),
            {"data.transform": f"{name}: {reason}"},
        )
    outside = settings.evaluation_transform
    training, spec = _transform(recipe, "data.transform", choice, preprocessing, train=True)
    evaluation, spec = _transform(
        recipe,
        "data.evaluation_transform" if outside is not None else "data.transform",
        choice if outside is None else outside,
        preprocessing,
        train=False,
    )
    return training, evaluation, spec, reasons


def _fitting_transform(samples: SampleSet, preprocessing: Preprocessing | None) -> tuple[str, str]:
    if isinstance(samples.samples, Texts | Vectors) or preprocessing is None:
        return "as_is", "samples go to the network as they are"
    if isinstance(samples.samples, TwoModalities):
        return IMAGE_AND_TEXT, f"images of {preprocessing.size} pixels for their network, texts as they are"
    if preprocessing.resize is None and _are_of_size(samples, preprocessing.size):
        return "none", "the network takes images of this size as they are"
    return "resized_crop", f"the network takes images of {preprocessing.size} pixels"


def _are_of_size(samples: SampleSet, size: int) -> bool:
    """Whether images fit a network as they are, by a few of them."""
    looked = range(0, len(samples), -(-len(samples) // _LOOKED_AT))
    return all(_height_and_width(samples.samples[index]) in (None, (size, size)) for index in looked)


def _height_and_width(sample: Any) -> tuple[int, int] | None:
    if isinstance(sample, Image.Image):
        return sample.height, sample.width
    shape: tuple[int, ...] = tuple(getattr(sample, "shape", ()))
    return (shape[-2], shape[-1]) if len(shape) > 1 else None


def _transform(
    recipe: Recipe, key: str, choice: TransformRecipe, preprocessing: Preprocessing | None, *, train: bool
) -> tuple[Transform, dict[str, Any] | None]:
    collate = recipe.objects.get("data.collate")
    given = recipe.objects.get(key)
    if given is not None:
        return as_transform(given, collate), None
    if choice.name is None or (collate is not None and choice.name == "as_is"):
        return PerSample(None, collate=collate), None
    if choice.name.startswith(PYTHON):
        raise ValueError(f"{key} was given in Python ({choice.name.removeprefix(PYTHON)}): pass it again")
    maker = TransformRecipe.maker(choice.name)
    if TransformRecipe.is_factory(choice.name):
        made = maker(preprocessing=preprocessing, train=train, **choice.keywords)
        return made, {"name": choice.name, **choice.keywords}
    function = functools.partial(maker, **choice.keywords) if choice.keywords else maker
    spec = {"object": choice.name, **choice.keywords}
    return PerSample(function, collate=collate), spec if collate is None else None


def batches_per_epoch(recipe: Recipe, data: DataSet) -> int:
    """Training steps of an epoch of a trial.

    Args:
        recipe: That of the trials, its protocol with validation classes.
        data: Its data set, without test classes.
    """
    task = recipe.build(data=data)
    samples, _ = task.protocol.split(data, task.seed)
    return len(task.batches(samples))
