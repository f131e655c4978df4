"""A tournament from beginning to end: losses are trained on equal terms, ranked, and reported on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearkin.benchmark import plan as plans
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan, PlanError
from nearkin.benchmark.progress import Board, BoardObserver
from nearkin.benchmark.watching import BoardDisplay
from nearkin.display import observer_for
from nearkin.losses import compares_samples
from nearkin.observer import Observer
from nearkin.recipe import Recipe, read_toml
from nearkin.recipe.choices import PYTHON
from nearkin.recipe.object_names import importable_name, named_instance
from nearkin.recipe.objects import recipe_of
from nearkin.recipe.photographs import protocol_for_few_classes
from nearkin.recipe.sections import LossRecipe
from nearkin.recipe.terms import merged
from nearkin.registry import nearest_name
from nearkin.tournament.budget import within_minutes
from nearkin.tournament.comparing import BASELINES, compare
from nearkin.tournament.outcomes import PAIRS_METRIC
from nearkin.tournament.recognising import meaning_of
from nearkin.tournament.report import write_report
from nearkin.tournament.standings import Standings
from nearkin.training import Run

PLAN = "tournament"

# Pair losses and proxy losses, old and new: those that the thesis compares.
TEN = (
    "contrastive",
    "triplet",
    "lifted_structure",
    "npair",
    "proxy_nca",
    "margin",
    "arcface",
    "multi_similarity",
    "soft_triple",
    "proxy_anchor",
)
PAIRS = "pairs"
"""The data set of which pairs are known."""
_SCORES = ("precision_at_1", "mean_reciprocal_rank", "map_at_r", "r_precision")
_SHOWN_FAILURES = 3
_TRIALS = 16


def play(
    data: Any = None,
    *,
    losses: Sequence[Any] | str | None = None,
    seeds: Sequence[int] | None = None,
    output: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    minutes: float | None = None,
    progress: bool | Observer = True,
    settings: Mapping[str, Any] | None = None,
    metric: str | None = None,
    alpha: float = 0.05,
    pool: Sequence[str] | str = (),
    baselines: bool = True,
    report: bool = True,
    tune: bool | int = False,
) -> Standings:
    """Let losses compete on equal terms, rank them beside their baselines, and write a report.

    What is there already is not trained again: a tournament that was stopped goes on.

    Args:
        data: A folder of images, a table of them, the name of a data set, a recipe (whose loss gives way), or
            a plan; without anything 18 losses are trained on the embedded glyphs. Runs, folders of runs and
            tables of results, one or several, are ranked without training.
        losses: Names, tables with keywords (``{"name": "margin", "nu": 0.1}``), functions and classes that
            can be imported, or instances that can be named; ``"all"`` for every registered one. By default
            ten well-known ones; of these, where only pairs of the samples are known, those that need no
            classes.
        seeds: The seeds of the runs of each loss; 0 by default, or the plan's.
        output: Where runs, baselines and report go; by default ``runs/tournament`` and the like, or
            ``tournament`` for runs that are there.
        jobs: Runs at a time; as many as there are cores or GPUs by default.
        ray: The address of a Ray cluster to train on (``auto``, or ``local`` for one that is started for the
            occasion) instead of processes of this machine.
        minutes: How long all of it may take on this machine, whose speed is measured first: epochs, how much
            of a pretrained network is trained, and (unless given) seeds are chosen, for all runs alike.
        progress: Whether to show progress, or who is told.
        settings: Any of :func:`nearkin.train`, such as ``network`` and ``epochs``, for all runs.
        metric: The score that ranks; by default ``recall_at_1``, and ``roc_auc`` for data of pairs.
        alpha: Level of all tests.
        pool: Settings to average over although they differ.
        baselines: Whether to run the baselines that are missing.
        report: Whether to write the report.
        tune: Whether to search the settings of every loss on validation classes first, each with the same
            number of trials: the plan's, 16, or the given one. Default settings are trained beside.

    Raises:
        ValueError: What cannot be; all that can be known is said before anything runs.
    """
    ranks_only = _is_results(data)
    asked = losses is not None or seeds is not None or minutes is not None or settings or tune
    if ranks_only and asked:
        raise ValueError(
            "runs are ranked as they are: losses, seeds, minutes, settings and tuning are for data to learn "
            "from"
        )
    if minutes is not None and tune:
        raise ValueError("minutes are for losses with the settings they have: give minutes or tune, not both")
    notes: list[str] = []
    if ranks_only:
        folder, source = Path(output or "tournament"), data
    else:
        plan = plan_for(data, losses=losses, seeds=seeds, settings=settings or {}, tune=tune)
        _check_metric(metric, plan)
        folder = Path(output or Path("runs") / (f"{plan.name}-tuned" if tune else plan.name))
        if minutes is not None:
            plan = within_minutes(
                plan,
                folder,
                minutes,
                seeds_are_said=seeds is not None,
                observer=observer_for(progress),
            )
        notes, source = _train(plan, folder, jobs, ray, progress), folder
    standings = compare(
        source,
        metric=metric,
        alpha=alpha,
        pool=pool,
        baselines=folder / BASELINES if baselines else False,
        progress=progress,
        notes=notes,
    )
    return publish(standings, folder, progress=progress) if report else standings


def publish(
    standings: Standings, folder: str | os.PathLike[str], *, progress: bool | Observer = True
) -> Standings:
    """Write the report, and the diagram of average ranks where there is a test of them."""
    folder = Path(folder)
    observer = observer_for(progress)
    page = write_report(standings, folder, observer=observer)
    picture = None
    if standings.nemenyi is not None:
        from nearkin.pictures.diagram import critical_difference_diagram  # noqa: PLC0415  (Matplotlib)

        picture = folder / "critical_difference.svg"
        critical_difference_diagram(
            standings.ranking.averages,
            picture,
            critical_difference=standings.nemenyi.critical_difference,
            groups=standings.nemenyi.groups,
            alpha=standings.nemenyi.alpha,
        )
    return replace(standings, report=page, picture=picture)


def _is_results(data: Any) -> bool:
    """Whether there is something to rank, and nothing to train."""
    if isinstance(data, Run):
        return True
    if isinstance(data, str | os.PathLike):
        return meaning_of(data) in {"runs", "results"}
    if not isinstance(data, list) or not data:
        return False
    if all(isinstance(one, str | os.PathLike | Run) for one in data):
        meanings = {"runs" if isinstance(one, Run) else meaning_of(one) for one in data}
        if meanings <= {"runs", "results"}:
            return True
        if len(data) > 1:
            raise ValueError(
                "several words must all be runs, folders of runs or tables of results; of data, plans and "
                "recipes give one"
            )
    return False


def plan_for(
    data: Any,
    *,
    losses: Sequence[Any] | str | None = None,
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Any],
    tune: bool | int = False,
) -> Plan:
    """The plan of a tournament on some data.

    Raises:
        PlanError: It cannot be executed; the message says which entry and what to write instead.
    """
    if isinstance(data, list) and len(data) == 1:
        (data,) = data
    said = _said(settings)
    if isinstance(data, Plan):
        values: dict[str, Any] = data.model_dump(exclude_unset=True)
    elif data is None:
        values = {"name": PLAN, **read_toml(plans.packaged_plans()[PLAN], kind="plan")}
    elif isinstance(data, str | os.PathLike) and meaning_of(data) == "plan":
        file = plans.packaged_plans().get(os.fspath(data), Path(data))
        values = {"name": file.stem, **read_toml(file, kind="plan")}
    else:
        recipe = recipe_of(data)
        _refuse_python(recipe.objects)
        table = recipe.resolved().data
        name = Path(data).stem if isinstance(data, str | os.PathLike) else str(table.name)
        # All losses are selected on the same classes; to train the best one on all classes is another run.
        protocol = protocol_for_few_classes(Recipe.parse(merged(recipe.said, said))) or "fixed_validation"
        own = merged({"protocol": {"name": protocol}}, recipe.said)
        values = {"name": _name_for(name, table.root), "recipe": own}
    values = {**values, "recipe": merged(values.get("recipe", {}), said)}
    if losses is not None or "losses" not in values:
        values["losses"] = _entries(
            _well_known(values["recipe"].get("data", {})) if losses is None else losses
        )
        values["recipe"].pop("loss", None)
        _forget_other_losses(values)
    if seeds is not None:
        values["seeds"] = list(seeds)
        values["recipe"].pop("seed", None)
    for axis, plural in plans.AXES.items():
        if axis not in {"loss", "seed"} and _names(said, axis):
            values.pop(plural, None)
    if tune:
        values.pop("found", None)
        values["tuning"] = _budget(values.get("tuning"), tune)
    return Plan.parse(values, source=str(values.get("name", PLAN)))


def _well_known(data: Mapping[str, Any] | str) -> tuple[str, ...]:
    """Ten losses; where only pairs are known, those of them that compare samples with each other."""
    table = Recipe.parse({"data": data}).resolved().data
    needs_no_classes = table.name == PAIRS and table.keywords.get("others") != "different"
    return tuple(name for name in TEN if compares_samples(name)) if needs_no_classes else TEN


def _budget(planned: Any, tune: bool | int) -> dict[str, Any]:
    """The plan's own budget, or the given number of trials."""
    budget = dict(planned or {"trials": _TRIALS, "sampler": "halving"})
    if tune is not True:
        budget.pop("steps", None)
        budget["trials"] = int(tune)
    return budget


def _forget_other_losses(values: dict[str, Any]) -> None:
    """Leave out what a plan says about losses that do not take part."""
    if values["losses"] == "all":
        return
    entries = [one if isinstance(one, Mapping) else {"name": one} for one in values["losses"]]
    taking_part = {entry[key] for entry in entries for key in ("name", "label") if key in entry}

    def speaks_of_them(match: Mapping[str, Any]) -> bool:
        wanted = match.get("loss", ())
        return not wanted or bool(taking_part & ({wanted} if isinstance(wanted, str) else set(wanted)))

    if "adjust" in values:
        values["adjust"] = [one for one in values["adjust"] if speaks_of_them(one["where"])]
    if "exclude" in values:
        values["exclude"] = [one for one in values["exclude"] if speaks_of_them(one)]


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of :func:`nearkin.train` as the tables of a recipe."""
    own = dict(settings)
    table = own.pop("data", {})
    recipe = recipe_of(None, **own)
    _refuse_python(recipe.objects)
    return merged(recipe.said, {"data": {"name": table} if isinstance(table, str) else table})


def _names(said: Mapping[str, Any], axis: str) -> bool:
    """Whether settings name an entry of a plan's axis, whose list then gives way."""
    table, key = ("network", "embedding_dim") if axis == "embedding_dim" else (axis, "name")
    section = said.get(table, {})
    return isinstance(section, str) or key in section or (key == "name" and "object" in section)


def _name_for(name: str, root: str | None) -> str:
    """The name of a tournament on a data set; another folder of this name is another tournament."""
    if root is not None:
        place = str(Path(root).resolve())
        name = f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:6]}"
    return f"{PLAN}-{name}"


def _refuse_python(given: Iterable[str]) -> None:
    """Refuse keys of a recipe whose values were given as objects."""
    for key in given:
        raise PlanError(
            f"the {key} was given as a Python object, which the worker processes of a tournament cannot be "
            "sent: put it into a module and name it as module:object, or train each run with nearkin.train "
            "and rank them with nearkin.compare"
        )


def _entries(losses: Sequence[Any] | str) -> Any:
    if isinstance(losses, str):
        return losses if losses == "all" else [losses]
    return [_entry(loss) for loss in losses]


def _entry(loss: Any) -> Any:
    if isinstance(loss, str | Mapping):
        return loss
    name = importable_name(loss)
    table = named_instance(loss, LossRecipe) if name is None else {"name": name}
    if table is None:
        table = {"name": f"{PYTHON}{getattr(loss, '__qualname__', type(loss).__qualname__)}"}
    return table if ":" not in table["name"] else table | {"label": table["name"].rpartition(":")[2]}


def _check_metric(metric: str | None, plan: Plan) -> None:
    """Say at once that no run would have such a score."""
    for run in plan.runs() if metric is not None else ():
        known = [*(f"recall_at_{k}" for k in run.recipe.evaluation.recall_at), *_SCORES]
        if run.recipe.resolved().data.name == PAIRS:
            known.append(PAIRS_METRIC)
        if metric not in known:
            raise PlanError(f"{run.name} would have no {metric}: {nearest_name(str(metric), known)}")


def _train(
    plan: Plan, folder: Path, jobs: int | None, ray: str | None, progress: bool | Observer
) -> list[str]:
    """Execute what is missing of a plan; say what failed."""
    watched = BoardDisplay() if progress is True else _Told(progress) if progress else BoardObserver()
    board = execute_plan(plan, folder, jobs=jobs, ray=ray, observer=watched)
    failed = board.in_state("failed")
    if not failed:
        return []
    reasons = [f"{progress.planned.name}: {progress.reason}" for progress in failed[:_SHOWN_FAILURES]]
    more = f"; and {len(failed) - _SHOWN_FAILURES} more" if len(failed) > _SHOWN_FAILURES else ""
    told = f"{len(failed)} of {len(board.runs)} runs failed: {'; '.join(reasons)}{more}"
    if len(failed) == len(board.runs):
        raise ValueError(f"{told}. Their error.txt in {folder} says more")
    return [f"{told}. They are not ranked."]


class _Told(BoardObserver):
    """Tells an observer how many of the runs are over."""

    def __init__(self, observer: Observer | bool) -> None:
        self._observer = observer if isinstance(observer, Observer) else Observer()

    def begin(self, board: Board) -> None:
        doing = "training" if board.what == "runs" else "tuning:"
        self._observer.stage(f"{doing} {len(board.runs)} {board.what}")

    def look(self, board: Board) -> None:
        self._observer.progress(len(board.in_state("done", "failed")), len(board.runs))
