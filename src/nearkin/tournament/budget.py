"""A tournament that fits into so many minutes: the machine's speed is measured once, for all of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearkin.atomic import write_json
from nearkin.benchmark.plan import Plan, PlanError
from nearkin.observer import Observer
from nearkin.recipe.building import fit_to_minutes
from nearkin.recipe.opening import open_data
from nearkin.recipe.terms import merged

BUDGET = "budget.json"
_TRAINING = 0.8  # of the minutes; baselines, tests and the report take the rest
_MOST_SEEDS = 5


def within_minutes(
    plan: Plan, folder: Path, minutes: float, *, seeds_are_said: bool, observer: Observer
) -> Plan:
    """The plan with as many epochs, and then seeds, as fit into the minutes; the same for all of its runs.

    What was chosen is kept in the folder: a tournament that was stopped goes on with it.

    Args:
        plan: Runs on one data set with one network.
        folder: Where its runs go.
        minutes: How long all of them may take on this machine, with the report.
        seeds_are_said: Whether the number of seeds stays as it is.
        observer: Hears what is measured and chosen.

    Raises:
        PlanError: Its runs differ in more than loss and seed, or the folder holds a tournament of another
            length.
    """
    file = folder / BUDGET
    if file.exists():
        chosen: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if chosen["minutes"] != minutes:
            raise PlanError(
                f"{folder} holds a tournament of {chosen['minutes']:g} minutes, not of {minutes:g}: choose "
                "another output directory"
            )
    else:
        chosen = {"minutes": minutes, **_chosen(plan, minutes, seeds_are_said, observer)}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, chosen)
    said: dict[str, Any] = {"training": {"epochs": chosen["epochs"]}}
    if chosen.get("cached_trunk") is not None:
        said["network"] = {"cached_trunk": chosen["cached_trunk"]}
    if chosen.get("lr") is not None:
        said["optimizer"] = {"lr": chosen["lr"]}
    values = plan.model_dump(exclude_unset=True)
    recipe = merged(values.get("recipe", {}), said)
    recipe.get("training", {}).pop("minutes", None)
    values = {**values, "recipe": recipe}
    if not seeds_are_said:
        values["seeds"] = list(range(chosen["seeds"]))
        recipe.pop("seed", None)
    return Plan.parse(values, source=plan.name)


def _chosen(plan: Plan, minutes: float, seeds_are_said: bool, observer: Observer) -> dict[str, Any]:
    runs = plan.runs()
    kinds = {tuple(run.labels[axis] for axis in ("data", "network", "embedding_dim")) for run in runs}
    if len(kinds) > 1:
        raise PlanError(
            "minutes are for a tournament on one data set with one network: say training.epochs for this plan"
        )
    recipe = runs[0].recipe
    found, usual = fit_to_minutes(
        recipe, open_data(recipe, observer), _TRAINING * minutes, runs=len(runs), observer=observer
    )
    epochs, seeds = found.epochs, 1
    if not seeds_are_said and epochs >= 2 * usual:  # longer is no better: rather say how much chance is in it
        seeds = min(epochs // usual, _MOST_SEEDS)
        epochs = usual if seeds < _MOST_SEEDS else min(epochs // seeds, 2 * usual)
    which = f"what comes after {found.trunk}" if found.trunk else "the whole network"
    observer.tell(
        f"{minutes:g} minutes by the speed measured on this machine: {len(runs)} runs"
        + (f" × {seeds} seeds" if seeds > 1 else "")
        + f" of {epochs} epochs, training {which}"
    )
    said = recipe.said.get("optimizer", {})
    lr = found.lr if isinstance(said, dict) and "lr" not in said else None
    return {"epochs": epochs, "seeds": seeds, "cached_trunk": found.trunk, "lr": lr}
