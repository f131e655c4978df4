"""What makes two runs comparable: the one place that decides what is averaged, what is ranked together.

:func:`relation` compares everything that two runs say about themselves. Whatever differs is a factor: between
runs that differ in the seed alone scores are averaged; what concerns the loss and how it is trained makes
another contender of the same experiment; what concerns data, network, protocol or evaluation makes another
experiment, on a board of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from nearkin.recipe.choices import PYTHON
from nearkin.registry import nearest_name
from nearkin.training import Result
from nearkin.training.run import NEUTRAL_KEYS

Relation = Literal["repetition", "seeds", "contenders", "experiments"]
"""How two runs stand to each other, from the closest to the farthest."""

Factor = Literal["nothing", "seed", "contender", "experiment"]
"""What a setting tells apart."""

_EXPERIMENT = frozenset({"data", "network", "protocol", "evaluation"})
# Of the network's table, these say how it is trained, not what it is.
_OF_TRAINING = frozenset({"network.head_lr_factor", "network.freeze_batch_norm", "network.pca_head"})
_ROOT_IS_THE_DATA = frozenset({"folder", "csv"})  # elsewhere it says only where a known data set lies
_SHOWN_FINGERPRINT = 8


def factor_of(key: str) -> Factor:
    """What runs are that differ in a setting.

    >>> [factor_of(key) for key in ("seed", "sampler.name", "data.size", "data.workers")]
    ['seed', 'contender', 'experiment', 'nothing']
    """
    if _is_below(key, NEUTRAL_KEYS):
        return "nothing"
    if key == "seed":
        return "seed"
    return "experiment" if key.partition(".")[0] in _EXPERIMENT and key not in _OF_TRAINING else "contender"


def _is_below(key: str, tables: Iterable[str]) -> bool:
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as ``table.key`` entries.

    >>> flat({"seed": 0, "loss": {"name": "nca", "memory": {"size": 8}}})
    {'seed': 0, 'loss.name': 'nca', 'loss.memory.size': 8}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:  # an empty table, such as a modifier's, says something too
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


@dataclass(frozen=True)
class SeenData:
    """What is known about the samples that a run saw; an empty string or 0 where it is not known.

    Attributes:
        test: Fingerprint of the test split.
        learnt: Fingerprints of the training and validation splits, which a protocol may draw by the seed.
        samples: How many these are together.
        classes: Their classes.
        root: The folder or table, where its contents are the data set.
    """

    test: str = ""
    learnt: str = ""
    samples: int = 0
    classes: int = 0
    root: str = ""

    @classmethod
    def of(cls, settings: Mapping[str, Any], result: Result | None) -> SeenData:
        """What a run's settings and result say."""
        table = settings.get("data", {})
        root = table.get("root") if table.get("name") in _ROOT_IS_THE_DATA else None
        place = str(Path(root).absolute()) if root else ""
        if result is not None and result.baseline is not None:
            return cls(test=result.baseline.test_fingerprint, root=place)
        data = None if result is None else result.data
        if data is None:
            return cls(root=place)
        learnt = [split for split in (data.train, data.validation) if split is not None]
        return cls(
            test=data.test.fingerprint if data.test is not None else "",
            learnt=" ".join(split.fingerprint for split in learnt).strip(),
            samples=sum(split.samples for split in learnt),
            classes=sum(split.classes for split in learnt),
            root=place,
        )

    def may_be(self, other: SeenData, *, same_seed: bool) -> bool:
        """Whether nothing that is known of both speaks against the same data.

        Where no fingerprint of the test split was kept, two folders or tables are two data sets.
        """
        if self.test and other.test:
            if self.test != other.test:
                return False
        elif self.root != other.root:
            return False
        if same_seed and self.learnt and other.learnt and self.learnt != other.learnt:
            return False
        return not (
            (self.samples and other.samples and self.samples != other.samples)
            or (self.classes and other.classes and self.classes != other.classes)
        )


@dataclass(frozen=True)
class Terms:
    """Everything about a run that its scores depend on.

    Attributes:
        settings: Every setting in plain values, as a complete recipe has them.
        data: What is known about the samples that it saw.
        trained: Whether a training made the scores. A baseline has no loss, optimiser or seed: its name says
            all that tells it from others of its experiment.
    """

    settings: Mapping[str, Any]
    data: SeenData = field(default_factory=SeenData)
    trained: bool = True

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The settings as ``table.key`` entries."""
        return flat(self.settings)

    def of_factor(self, factor: Factor, pool: Sequence[str] = ()) -> dict[str, Any]:
        """The settings that tell experiments, contenders or seeds apart, without those that are pooled."""
        if not self.trained and factor != "experiment":
            return {}
        return {
            key: value
            for key, value in self.flat.items()
            if factor_of(key) == factor and not _is_below(key, pool)
        }

    def given_in_python(self, pool: Sequence[str] = ()) -> list[str]:
        """What a training was given as an object, so that only the name of its type is known.

        Samples are not among them: fingerprints know them.
        """
        if not self.trained:
            return []
        return [
            key.removesuffix(".name")
            for key, value in self.flat.items()
            if isinstance(value, str)
            and value.startswith(PYTHON)
            and key != "data.name"
            and not _is_below(key, pool)
        ]

    def key(self, factor: Factor, pool: Sequence[str] = ()) -> str:
        """The same as one text: two are equal where all these settings are."""
        known: dict[tuple[str, tuple[str, ...]], str] = self.__dict__.setdefault("_keys", {})
        wanted = factor, tuple(pool)
        if wanted not in known:
            known[wanted] = _text(self.of_factor(factor, pool))
        return known[wanted]


def relation(first: Terms, second: Terms, *, pool: Sequence[str] = ()) -> Relation:
    """How two runs stand to each other; whatever averages or ranks runs goes by this.

    * ``repetition``: the same run again, which counts once;
    * ``seeds``: they differ in the seed only, and may be averaged;
    * ``contenders``: one experiment, and two rows of its board;
    * ``experiments``: their scores must not stand on one board.

    Args:
        first: The terms of a run or baseline.
        second: The terms of another one.
        pool: Settings, or whole tables, to average over although they differ.
    """
    if first.key("experiment", pool) != second.key("experiment", pool):
        return "experiments"
    same_seed = first.key("seed") == second.key("seed") and first.trained and second.trained
    if not _is_below("data", pool) and not first.data.may_be(second.data, same_seed=same_seed):
        return "experiments"
    if first.trained != second.trained or first.key("contender", pool) != second.key("contender", pool):
        return "contenders"
    if not first.trained:
        return "repetition"
    pooled_differ = any(first.key(one) != second.key(one) for one in ("experiment", "contender"))
    return "repetition" if same_seed and not pooled_differ else "seeds"


def check_pool(pool: Sequence[str], known: Iterable[Terms]) -> None:
    """Refuse settings to pool that no run has.

    Raises:
        ValueError: One is unknown; the message says what was meant.
    """
    keys = {key for terms in known for key in terms.flat}
    tables = {key.rpartition(".")[0] or key for key in keys} | {key.partition(".")[0] for key in keys}
    for wanted in pool:
        if wanted not in keys | tables:
            raise ValueError(
                f"--pool {wanted}: no run has such a setting: {nearest_name(wanted, sorted(keys | tables))}"
            )


def telling_keys(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """A few settings that tell all groups of settings apart, those that name something first.

    >>> balanced = {"sampler.name": "balanced", "sampler.images_per_class": 5}
    >>> telling_keys([balanced, {"sampler.name": "random"}])
    ['sampler.name']
    """
    keys = sorted({key for group in groups for key in group}, key=_telling_order)
    chosen: list[str] = []
    apart = 1
    wanted = len({_values(group, keys) for group in groups})
    for key in keys:
        if apart == wanted:
            break
        now = len({_values(group, [*chosen, key]) for group in groups})
        if now > apart:
            chosen.append(key)
            apart = now
    return chosen


def _telling_order(key: str) -> tuple[bool, bool, str]:
    return not key.endswith("name"), not key.startswith("loss."), key


def _values(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return _text([settings.get(key) for key in keys])


def _text(value: Any) -> str:
    """A value as text, the same for 1 and 1.0."""
    return json.dumps(_without_zeros(value), sort_keys=True, default=str)


def _without_zeros(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_zeros(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_zeros(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def told(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Some settings in a few words; the loss's own without the name of its table.

    >>> told({"loss.margin": 0.2, "sampler.name": "random"}, ["loss.margin", "sampler.name", "training.ema"])
    'margin=0.2, sampler.name=random, training.ema=none'
    """
    return ", ".join(f"{key.removeprefix('loss.')}={_word(settings.get(key))}" for key in keys)


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return "+".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def names_of_data(groups: Sequence[Sequence[SeenData]]) -> list[str]:
    """What tells boards apart whose settings are equal: where their data lies, or its fingerprint."""
    roots = [next((one.root for one in group if one.root), "") for group in groups]
    if len(set(roots)) == len(roots):
        return [_distinct_end(root, roots) for root in roots]
    prints = [next((one.test for one in group if one.test), "") for group in groups]
    if len(set(prints)) == len(prints):
        return [f"test samples {one[:_SHOWN_FINGERPRINT]}" if one else "unknown samples" for one in prints]
    learnt = [next((one.learnt for one in group if one.learnt), "") for group in groups]
    return [
        f"training samples {one[:_SHOWN_FINGERPRINT]}" if one else f"other samples {number}"
        for number, one in enumerate(learnt, 1)
    ]


def _distinct_end(root: str, roots: Sequence[str]) -> str:
    """As much of a path's end as tells it from the others."""
    parts = Path(root).parts
    for length in range(1, len(parts) + 1):
        end = parts[-length:]
        if sum(Path(other).parts[-length:] == end for other in roots) == 1:
            return str(Path(*end))
    return root
