"""What is there to compare: finished runs, baselines and published figures, all in one shape."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from nearkin.benchmark.found import FOUND, TUNING, Found, read_found
from nearkin.benchmark.plan import NO_MODIFIER
from nearkin.evaluation import RetrievalScores
from nearkin.recipe import Recipe
from nearkin.recipe.choices import PYTHON
from nearkin.recipe.sections import DataRecipe
from nearkin.tournament.terms import SeenData, Terms
from nearkin.training import Description, Result, Run

Kind = Literal["run", "baseline", "published"]

METRIC, PAIRS_METRIC = "recall_at_1", "roc_auc"
"""What ranks by default: of classes, and of pairs."""

_DEEPEST = 8  # folders below a given one that are looked into
_MOST_FOLDERS = 20_000  # that are looked through before it is clear that this is no folder of runs


@dataclass(frozen=True, order=True)
class Experiment:
    """What has to be the same before two losses can be compared, by the names a reader knows it by.

    Two experiments are told apart by more than these names (see :mod:`nearkin.tournament.terms`); where the
    names are the same, ``detail`` says what differs.

    Attributes:
        dataset: Name of the data set, with the keywords that change it.
        network: Name of the network; empty where it is not known.
        embedding_dim: D; 0 where it is not known.
        protocol: How the tested network was selected; empty where it is not known.
        detail: What tells it from another experiment of the same names.
    """

    dataset: str
    network: str
    embedding_dim: int
    protocol: str
    detail: str = ""

    def __str__(self) -> str:
        parts = (self.dataset, self.network, self.embedding_dim or "", self.protocol, self.detail)
        return " · ".join(str(part) for part in parts if part)


@dataclass(frozen=True)
class Outcome:
    """One contender's scores in one experiment.

    Attributes:
        experiment: Where it took part.
        contender: The name of the loss or of the baseline, or the label that a plan gave it.
        kind: ``run``, ``baseline`` or ``published``.
        scores: The scores on the test classes, such as ``recall_at_1``, all in [0, 1].
        source: The run's directory, or the publication.
        seed: ``None`` where chance has no part, or is not known.
        path: The directory it was read from, if there is one.
        terms: Everything that the scores depend on; ``None`` for figures of which only names are known.
        result: Everything the run found out.
        curve: A row per epoch, as in ``metrics.jsonl``.
        cost: Seconds and bytes, as in ``cost.json``.
        description: One line on what the contender is, where the name does not say it.
        loss: The name of the loss, whatever the contender is called.
        variant: Of a plan whose losses were tuned: ``tuned``, or ``default`` for its own settings beside.
        found: What the search found that tuned it.
    """

    experiment: Experiment
    contender: str
    kind: Kind
    scores: dict[str, float]
    source: str
    seed: int | None = None
    path: Path | None = None
    terms: Terms | None = field(default=None, repr=False)
    result: Result | None = field(default=None, repr=False)
    curve: list[dict[str, Any]] = field(default_factory=list, repr=False)
    cost: dict[str, float | int] | None = field(default=None, repr=False)
    description: str = ""
    loss: str = ""
    variant: Literal["", "default", "tuned"] = ""
    found: Found | None = field(default=None, repr=False)

    @property
    def disclosure(self) -> dict[str, Any]:
        """What a reader should know about how the scores came about."""
        return {} if self.result is None else self.result.disclosure

    def run(self) -> Run | None:
        """Its directory, if there is one."""
        if self.path is None:
            return None
        settings = {} if self.terms is None else dict(self.terms.settings)
        return Run(self.path, Description(terms=settings))

    def queries(self) -> tuple[RetrievalScores, Tensor] | None:
        """The test scores with the values of every query, and the labels of the test samples, if kept."""
        run = self.run()
        return None if run is None else run.queries()

    def parts(self) -> list[tuple[RetrievalScores, Tensor]]:
        """The queries of every network behind the scores: one, or one per fold; empty if not all are kept."""
        run = self.run()
        return [] if run is None else run.parts()


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
        ValueError: One of the paths is no directory, or holds far too many folders to be one of runs.
    """
    outcomes: list[Outcome] = []
    skipped: list[Skipped] = []
    labels = _Labels()
    for folder in _folders(paths):
        try:
            outcome = _read(folder, labels.of(folder))
            outcome = outcome and replace(outcome, **labels.tuning_of(folder))
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
        for folder in run_folders(path):
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                yield folder


def run_folders(path: Path) -> list[Path]:
    """The directories of runs and baselines in or below a folder, in order; what lies in one is its part.

    Raises:
        ValueError: There are far too many folders: this is no folder of runs.
    """
    found: list[Path] = []
    for looked, (place, folders, files) in enumerate(os.walk(path), 1):
        if looked > _MOST_FOLDERS:
            raise ValueError(
                f"{path} holds more than {_MOST_FOLDERS:,} folders: give the folder of the runs themselves"
            )
        here = Path(place)
        if "recipe.toml" in files or "result.json" in files:
            found.append(here)
            folders.clear()
        elif "search.json" in files:  # its trials are no results: they were never tested
            folders[:] = [name for name in folders if name in {"best", "validated"}]
        elif len(here.relative_to(path).parts) >= _DEEPEST:
            folders.clear()
        folders.sort()
    return sorted(found)


class _Labels:
    """What plans call their runs, from the ``plan.json`` beside them."""

    def __init__(self) -> None:
        self._known: dict[Path, dict[str, str]] = {}
        self._variants: dict[Path, dict[str, dict[str, Any]]] = {}

    def of(self, run: Path) -> str:
        """A run's label; empty if no plan gave it one."""
        folder = run.parent
        if folder not in self._known:
            self._known[folder] = self._read(folder / "plan.json")
        return self._known[folder].get(run.name, "")

    def _read(self, file: Path) -> dict[str, str]:
        try:
            runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
            self._variants[file.parent] = _variants(runs, file.parent)
            return {one["name"]: contender_label(one) for one in runs}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def tuning_of(self, run: Path) -> dict[str, Any]:
        """Whether a run was tuned and what was found, as an outcome's attributes; nothing where none was."""
        return self._variants.get(run.parent, {}).get(run.name, {})


def _variants(runs: Iterable[Mapping[str, str]], folder: Path) -> dict[str, dict[str, Any]]:
    """Of a plan whose losses were tuned, each run's variant and what the search found for it."""
    file = folder / TUNING / FOUND
    found = read_found(file) if file.exists() else {}
    variants: dict[str, dict[str, Any]] = {}
    for one in runs:
        if "settings" in one:
            search = one["name"].rpartition("-seed")[0].removesuffix(f"-{one['settings']}")
            variants[one["name"]] = {"variant": one["settings"], "found": found.get(search)}
    return variants


def contender_label(labels: Mapping[str, str]) -> str:
    """What a plan calls a run's contender: ``proxy_anchor + mixup``."""
    extra, modifier = labels.get("extra"), labels.get("modifier", NO_MODIFIER)
    loss = labels["loss"] if modifier == NO_MODIFIER else f"{labels['loss']} + {modifier}"
    return f"{loss} {extra}" if extra else str(loss)


def _read(folder: Path, label: str) -> Outcome | None:
    run = Run.existing(folder) if (folder / "recipe.toml").exists() else None
    if run is not None and not run.finished:
        return None
    return outcome_of(run or Run(folder, Description()), label=label)


def outcome_of(run: Run, *, label: str = "") -> Outcome:
    """A finished run or baseline as an outcome.

    Args:
        run: Its directory.
        label: What a plan calls it.
    """
    result = _result_of(run)
    found = outcome_from(result, _settings(run, result), source=str(run.path), label=label)
    return replace(found, path=run.path, curve=run.selection_metrics(), cost=run.cost())


def outcome_from(result: Result, settings: Mapping[str, Any], *, source: str, label: str = "") -> Outcome:
    """A result as an outcome, wherever its directory is.

    Args:
        result: What a run found out.
        settings: Every setting of the run.
        source: What to call it by.
        label: What a plan calls it.
    """
    terms = Terms(settings, SeenData.of(settings, result), trained=result.baseline is None)
    baseline = result.baseline
    loss = str(settings["loss"]["name"]).removeprefix(PYTHON) if baseline is None else ""
    modifiers = [key for key, table in settings.get("loss", {}).items() if isinstance(table, Mapping)]
    return Outcome(
        experiment=experiment_of(settings, result),
        contender=(label or " + ".join([loss, *modifiers])) if baseline is None else baseline.name,
        kind="run" if baseline is None else "baseline",
        scores=_pair_scores(result) | _scores(result.test.to_dict()),
        source=source,
        seed=settings.get("seed") if baseline is None else None,
        terms=terms,
        result=result,
        description="" if baseline is None else baseline.description,
        loss=loss,
    )


def _result_of(run: Run) -> Result:
    """The result, or what is wrong with it in the words of whoever wrote it."""
    values = json.loads(run.result_file.read_text(encoding="utf-8"))
    return Result.from_dict(values)


def _settings(run: Run, result: Result) -> dict[str, Any]:
    """Every setting; the first edition did not write the defaults of keywords out."""
    complete = bool(result.baseline.test_fingerprint) if result.baseline else (run.path / "run.json").exists()
    if complete:
        return dict(run.terms or result.recipe)
    try:
        return Recipe.parse(run.terms or result.recipe).complete()
    except ValueError:  # it names something that is not installed here
        return dict(run.terms or result.recipe)


def _scores(values: Mapping[str, Any]) -> dict[str, float]:
    """The scores among a result's numbers, which hold counts as well."""
    return {name: float(value) for name, value in values.items() if not name.startswith("queries")}


def _pair_scores(result: Result) -> dict[str, float]:
    """ROC AUC of the known pairs, where the data is of pairs; the mean over several networks."""
    if result.baseline is not None:
        return {} if result.baseline.roc_auc is None else {PAIRS_METRIC: result.baseline.roc_auc}
    found = [one.verification.verification.roc_auc for one in result.networks if one.verification is not None]
    return {PAIRS_METRIC: sum(found) / len(found)} if found else {}


def default_metric(outcomes: Iterable[Outcome]) -> str:
    """What ranks where nobody says: ROC AUC where all are of pairs, else Recall@1."""
    return PAIRS_METRIC if all(PAIRS_METRIC in one.scores for one in outcomes) else METRIC


def experiment_of(settings: Mapping[str, Any], result: Result | None = None) -> Experiment:
    """The experiment that complete settings take part in, by the names a reader knows it by."""
    network = settings.get("network", {})
    size = network.get("embedding_dim") or (0 if result is None else result.network.get("embedding_dim", 0))
    return Experiment(
        dataset=_dataset(settings.get("data", {})),
        network=str(network.get("name", "")).removeprefix(PYTHON),
        embedding_dim=int(size),
        protocol=str(settings.get("protocol", {}).get("name", "")),
    )


def _dataset(table: Mapping[str, Any]) -> str:
    """The data set's name, that of its folder or table, and keywords that are not the defaults."""
    name, root = str(table.get("name", "")), table.get("root")
    try:
        defaults = DataRecipe.defaults_of(name)
    except (ValueError, ImportError):  # given in Python, or not installed here
        defaults = {}
    own = {key for key in table if key not in DataRecipe.model_fields}
    changed = {key: table[key] for key in sorted(own) if table[key] != _plain(defaults.get(key))}
    shown = name.removeprefix(PYTHON)
    if name in {"folder", "csv", "pairs", "captions"} and root:
        shown = f"{shown} {Path(root).name}"
    told = ", ".join(f"{key}={value}" for key, value in changed.items())
    return f"{shown} ({told})" if told else shown


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
