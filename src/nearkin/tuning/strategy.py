"""How a search draws its trials, when it gives one up, and what it says mattered: Optuna, seeded."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from nearkin.losses import Choices, Range
from nearkin.recipe.searching import Values
from nearkin.tuning.plan import SearchPlan


def suggest(trial: optuna.Trial, key: str, where: Range | Choices) -> Any:
    """A value for a key, as the study's sampler draws it or as the trial was queued with."""
    if isinstance(where, Choices):
        return trial.suggest_categorical(key, where.values)
    if where.whole:
        return trial.suggest_int(key, int(where.low), int(where.high), log=where.log)
    return trial.suggest_float(key, where.low, where.high, log=where.log)


def sampler_of(plan: SearchPlan, number: int, study: optuna.Study) -> optuna.samplers.BaseSampler:
    """Of one trial, so that a search that was stopped draws what it would have drawn; first the recipe."""
    if plan.sampler == "coordinate":
        return _Given(_of_coordinate(plan, number, study))
    seed = int(np.random.SeedSequence([plan.recipe.seed, number]).generate_state(1)[0])
    if plan.sampler == "grid":
        return _Given(plan.grid_point(number))
    own = plan.searched.own_values()
    if number == 0 and own is not None:
        return _Given(own)
    if plan.sampler in {"random", "halving"}:
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _of_coordinate(plan: SearchPlan, number: int, study: optuna.Study) -> Values:
    """The point of a trial: what was best for the keys before, this key's own, the recipe for the rest."""
    scores = {
        trial.user_attrs["number"]: (
            (trial.value or 0.0, trial.user_attrs.get("map_at_r", 0.0)),
            trial.params,
        )
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if "number" in trial.user_attrs
    }
    values = plan.searched.nearest_values()
    for coordinate in plan.coordinates():
        if number < coordinate.until:
            values[coordinate.key] = coordinate.points[number - coordinate.first]
            return values
        tried = [scores[one] for one in range(coordinate.first, coordinate.until) if one in scores]
        if tried:  # of equals the first: Python's max keeps it
            values[coordinate.key] = max(tried, key=lambda one: one[0])[1][coordinate.key]
    raise ValueError(f"trial {number} lies behind the last point of the search")


def pruner_of(plan: SearchPlan) -> optuna.pruners.BasePruner:
    """When to give a trial up; not before the median of five others says something."""
    epochs = plan.recipe.training.epochs
    if plan.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=max(1, epochs // 4))
    if plan.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs)
    return optuna.pruners.NopPruner()


class _Given(optuna.samplers.BaseSampler):
    """Values that are known beforehand."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._values[param_name]


def importances(study: optuna.Study) -> dict[str, float]:
    """How much of the differences between trials each value explains; nothing if there are too few trials."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < 4 or len({trial.value for trial in done}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in found.items()}
