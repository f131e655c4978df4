"""What was chosen for a training, in five lines, before it begins."""

from __future__ import annotations

from nearkin.data import TwoModalities
from nearkin.data.looking import look_at
from nearkin.networks.anatomy import anatomy_of
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import IMAGE_TEXT
from nearkin.training import Task


def told(recipe: Recipe, task: Task) -> list[str]:
    """Five lines: data, network, what of it is trained, loss and learning rates, length and selection.

    Args:
        recipe: With every choice made.
        task: What was built from it.
    """
    return [
        f"data      {_data(task)}",
        f"network   {_network(recipe, task)}",
        f"trained   {_trained(recipe, task)}",
        f"loss      {_loss(recipe, task)}",
        f"length    {_length(recipe, task)}",
    ]


def _data(task: Task) -> str:
    look, test = look_at(task.data.train), task.data.test
    if isinstance(task.data.train.samples, TwoModalities):
        sealed = "" if test is None else f"; {len(test):,} pairs of other classes sealed for the test"
        return f"{len(task.data.train):,} pairs of {' and '.join(task.data.train.samples.names)}{sealed}"
    which = "of the same" if task.data.closed else "in other"
    sealed = (
        ""
        if test is None
        else f"; {len(test):,} {which} classes sealed for the test ({test.num_classes:,} classes)"
    )
    return f"{look or f'{len(task.data.train):,} samples'}{sealed}"


def _network(recipe: Recipe, task: Task) -> str:
    network, built = recipe.network, task.embedder.network
    if network.name == IMAGE_TEXT:
        told = network.keywords
        start = told.get("image_weights") or "random"
        assert built.preprocessing is not None
        return (
            f"{told.get('image', 'convnet')} for images, weights {start}, {built.preprocessing.size} pixels; "
            f"{told.get('text', 'minilm')} for texts; embeddings of {built.embedding_dim // 2} each"
        )
    start = "random weights" if network.weights is None else f"weights {network.weights}"
    size = "" if built.preprocessing is None else f", {built.preprocessing.size} pixels"
    norm = ", batch norm frozen" if network.freeze_batch_norm else ""
    return (
        f"{network.name}, {start}{size}, pooling {network.pooling}{norm}, embeddings of {built.embedding_dim}"
    )


def _trained(recipe: Recipe, task: Task) -> str:
    head = "; the head starts as principal components" if recipe.network.pca_head else ""
    precision = recipe.training.precision
    head += "" if precision == "fp32" else f"; steps in {precision}"
    if recipe.network.name == IMAGE_TEXT:
        if recipe.network.cached_trunk is not None:
            return "the heads of both; features are computed once"
        both = recipe.network.keywords.get("train_text", False)
        return "all of both" if both else "the network for images, and the head of the language model"
    if recipe.network.cached_trunk is None:
        return f"all of it{head}"
    crops = recipe.network.cached_crops
    views = f" for {2 + crops} views of each image ({crops} random crops among them)" if crops else ""
    size = _told_bytes(cache_bytes(recipe, task))
    stage = recipe.network.cached_trunk
    return f"what comes after {stage}; the rest is computed once{views}, {size} on disk{head}"


def _told_bytes(count: int) -> str:
    """A size for a person.

    >>> _told_bytes(2_340_000_000), _told_bytes(12_600_000)
    ('2.3 GB', '13 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def cache_bytes(recipe: Recipe, task: Task) -> int:
    """What the cached trunk's outputs take on disk: two bytes a number, for every view of every image."""
    network = recipe.network
    assert network.cached_trunk is not None
    if network.is_own_module:
        return 0
    numbers = anatomy_of(network.name, network.keywords).numbers.get(network.cached_trunk, 0)
    test = 0 if task.data.test is None else len(task.data.test)
    views = len(task.data.all_classes) * (2 + network.cached_crops) + test
    return 2 * numbers * views


def _loss(recipe: Recipe, task: Task) -> str:
    rates, sampler = task.rates, recipe.sampler
    own = f", {rates.loss:g} for the loss's own" if rates.loss != rates.network else ""
    return (
        f"{recipe.loss.name}; {sampler.name} batches of {sampler.batch_size}; learning rate "
        f"{rates.network:g}{own}, {recipe.schedule.name}"
    )


def _length(recipe: Recipe, task: Task) -> str:
    train, validation = task.protocol.split(task.data.without_test(), task.seed)
    epochs = "1 epoch" if task.settings.epochs == 1 else f"{task.settings.epochs} epochs"
    why = task.description.chosen.get("training.epochs", "")
    within = f"; {why}" if recipe.training.minutes is not None and why else ""
    if validation is None:
        return f"{epochs}; the last one counts{within}"
    if task.protocol.taught_by(task.data.without_test(), task.seed).num_classes > train.num_classes:
        return (
            f"{epochs} at most; {validation.num_classes} classes choose how many, and then all of them teach"
            f"{within}"
        )
    choose = f"{validation.num_classes} classes that are not trained on"
    if task.data.closed:
        choose = f"{len(validation):,} images of these classes that are not trained on"
    return f"{epochs}; {choose} choose the best one{within}"
