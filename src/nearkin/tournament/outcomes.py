"""What is there to compare: finished runs, baselines and published figures, all in one shape."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from nearkin.evaluation import RetrievalScores
from nearkin.training import Recipe, Run

Kind = Literal["run", "baseline", "published"]

# What one experiment compares, or what makes no difference to it: the rest of two recipes must be equal.
_FREE_SECTIONS = frozenset({"seed", "loss", "sampler"})
_FREE_KEYS = frozenset({"data.root", "data.workers", "evaluation.batch_size", "training.checkpoint_minutes"})


@dataclass(frozen=True, order=True)
class Experiment:
    """What has to be the same before two losses can be compared.

    Attributes:
        dataset: Name of the data set, with the keywords that change it.
        network: Name of the network.
        embedding_dim: D.
        protocol: How the tested network was selected.
    """

    dataset: str
    network: str
    embedding_dim: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.dataset} · {self.network} · {self.embedding_dim} · {self.protocol}"


@dataclass(frozen=True)
class Outcome:
    """One contender's scores in one experiment.

    Attributes:
        experiment: Where it took part.
        contender: The name of the loss or of the baseline.
        kind: ``run``, ``baseline`` or ``published``.
        scores: On the test classes, such as ``recall_at_1``, all in [0, 1].
        source: The run's directory, or the publication.
        seed: ``None`` where chance has no part, or is not known.
        path: The directory it was read from, if there is one.
        recipe: Plain values of the whole recipe; empty for published figures.
        validation: Scores on the validation classes at the chosen epoch.
        curve: A row per epoch, as in ``metrics.jsonl``.
        cost: Seconds and bytes, as in ``cost.json``.
        disclosure: What a reader should know about how the scores came about.
        description: One line on what the contender is, where the name does not say it.
        result: All of ``result.json``.
    """

    experiment: Experiment
    contender: str
    kind: Kind
    scores: dict[str, float]
    source: str
    seed: int | None = None
    path: Path | None = None
    recipe: dict[str, Any] = field(default_factory=dict, repr=False)
    validation: dict[str, float] | None = field(default=None, repr=False)
    curve: list[dict[str, Any]] = field(default_factory=list, repr=False)
    cost: dict[str, float | int] | None = field(default=None, repr=False)
    disclosure: dict[str, Any] = field(default_factory=dict, repr=False)
    description: str = ""
    result: dict[str, Any] = field(default_factory=dict, repr=False)

    def queries(self) -> tuple[RetrievalScores, Tensor] | None:
        """The test scores with the values of every query, and the labels of the test images, if kept."""
        if self.path is None or not self.recipe:
            return None
        return Run(self.path, Recipe.parse(self.recipe)).queries()

    def parts(self) -> list[tuple[RetrievalScores, Tensor]]:
        """The queries of every network behind the scores: one, or one per fold; empty if not all are kept."""
        own = self.queries()
        if own is not None or self.path is None:
            return [] if own is None else [own]
        folds = [Run.existing(self.path / fold["run"]).queries() for fold in self.result.get("folds", [])]
        kept = [fold for fold in folds if fold is not None]
        return kept if len(kept) == len(folds) else []

    def terms(self) -> dict[str, Any]:
        """Everything in the recipe that must be equal for equal terms, as flat ``table.key`` entries."""
        flat: dict[str, Any] = {}
        for section, values in self.recipe.items():
            if section in _FREE_SECTIONS:
                continue
            entries = values if isinstance(values, Mapping) else {"": values}
            flat |= {f"{section}.{key}".rstrip("."): value for key, value in entries.items()}
        if "sampler" in self.recipe:
            flat["sampler.batch_size"] = self.recipe["sampler"].get("batch_size")
        return {key: value for key, value in flat.items() if key not in _FREE_KEYS}


class Skipped(NamedTuple):
    """A directory that holds something, but nothing that can be compared."""

    path: Path
    reason: str


class Reading(NamedTuple):
    """What :func:`read_outcomes` found: what can be compared, and what cannot."""

    outcomes: list[Outcome]
    skipped: list[Skipped]


def read_outcomes(paths: Iterable[str | os.PathLike[str]]) -> Reading:
    """Read every run and baseline in or below the given directories.

    Unfinished and damaged ones are listed under ``skipped`` with the reason, and stop nothing.

    Raises:
        ValueError: if one of the paths does not exist.
    """
    outcomes: list[Outcome] = []
    skipped: list[Skipped] = []
    for folder in _folders(paths):
        try:
            outcome = _read_run(folder) if (folder / "recipe.toml").exists() else _read_baseline(folder)
        except (ValueError, KeyError, TypeError, OSError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            skipped.append(Skipped(folder, reason))
            continue
        if outcome is None:
            skipped.append(Skipped(folder, "not finished"))
        else:
            outcomes.append(outcome)
    return Reading(outcomes, skipped)


def _folders(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """Every directory of a run or baseline, once; a run inside a run, such as a fold, is a part of it."""
    seen: set[Path] = set()
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            raise ValueError(f"{path} is not a directory: give runs, or folders that hold runs")
        files = (file for name in ("recipe.toml", "result.json") for file in path.rglob(name))
        folders = {file.parent for file in files}
        for folder in sorted(folders):
            inside = any(parent in folders for parent in folder.parents)
            if not inside and folder.resolve() not in seen:
                seen.add(folder.resolve())
                yield folder


def _read_run(folder: Path) -> Outcome | None:
    run = Run.existing(folder)
    result = run.result()
    if result is None:
        return None
    return Outcome(
        experiment=experiment_of(run.recipe),
        contender=run.recipe.loss.name,
        kind="run",
        scores=_scores(result["test"]),
        source=str(folder),
        seed=run.recipe.seed,
        path=folder,
        recipe=run.recipe.to_dict(),
        validation=None if result.get("validation") is None else _scores(result["validation"]),
        curve=run.metrics(),
        cost=run.cost(),
        disclosure=result.get("disclosure", {}),
        result=result,
    )


def _read_baseline(folder: Path) -> Outcome | None:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    recipe = Recipe.parse(result["recipe"], source=str(folder))
    about = result["baseline"]
    return Outcome(
        experiment=experiment_of(recipe),
        contender=about["name"],
        kind="baseline",
        scores=_scores(result["test"]),
        source=str(folder),
        path=folder,
        recipe=recipe.to_dict(),
        cost=Run(folder, recipe).cost(),
        disclosure=result.get("disclosure", {}),
        description=about["description"],
        result=result,
    )


def _scores(values: Mapping[str, Any]) -> dict[str, float]:
    """The scores among a result's numbers, which hold counts as well."""
    return {name: float(value) for name, value in values.items() if not name.startswith("queries")}


def experiment_of(recipe: Recipe) -> Experiment:
    """The experiment that a recipe takes part in."""
    data = recipe.data
    name = data.name
    if name == "folder" and data.root is not None:
        name = f"folder {Path(data.root).name}"
    changes = ", ".join(f"{key}={value}" for key, value in sorted(data.keywords.items()))
    return Experiment(
        dataset=f"{name} ({changes})" if changes else name,
        network=recipe.network.name,
        embedding_dim=recipe.network.embedding_dim,
        protocol=recipe.protocol.name,
    )
