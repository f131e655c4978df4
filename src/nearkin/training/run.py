"""A run's directory: recipe, metrics, checkpoints and result, whole at every moment."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.atomic import atomic_path, is_unfinished, remove_unfinished, write_json, write_text
from nearkin.evaluation import PerQuery, RetrievalScores
from nearkin.recipe.recipe import Recipe, RecipeError
from nearkin.training.distributed import is_first_process

_KEPT_CHECKPOINTS = 2


class RunError(ValueError):
    """A run directory that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run.

    Attributes:
        tensors: By name: weights, optimiser state, generators.
        state: Plain values: the place in the plan, learning rates, what was best so far.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Run:
    """A run's directory.

    ``recipe.toml`` says what the run is, ``metrics.jsonl`` has a line per epoch, ``checkpoint/`` its last two
    moments and, in the end, the chosen network. ``test_queries.safetensors`` has the test score of every
    query, for comparisons between runs, and ``cost.json`` what the run took; ``result.json`` is there when it
    is finished.

    Use :meth:`open` to begin or continue a run, and :meth:`existing` to read one.

    Attributes:
        path: The directory.
        recipe: What the run is.
        writes: Whether this process writes the files: of several that train together, the first does, and
            in the others everything that writes does nothing.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self.recipe = recipe
        self.writes = is_first_process()

    @classmethod
    def open(cls, path: str | os.PathLike[str], recipe: Recipe) -> Run:
        """Begin a run in a new directory, or continue the one that is there if its recipe is the same."""
        path = Path(path)
        run = cls(path, recipe)
        if not run.writes:
            return run
        try:
            if run._recipe_file.exists():
                run._check_same_recipe()
            elif any(entry.is_file() and not is_unfinished(entry) for entry in path.rglob("*")):
                raise RunError(f"{path} holds other files and no run: choose another output directory")
            else:
                write_text(run._recipe_file, recipe.to_toml())
        except OSError as error:
            raise RunError(f"cannot write to {path}: {error.strerror or error}") from None
        return run

    @classmethod
    def existing(cls, path: str | os.PathLike[str]) -> Run:
        """The run in a directory that has one."""
        path = Path(path)
        if not (path / "recipe.toml").exists():
            what = "has no recipe.toml: it is not a run" if path.is_dir() else "does not exist"
            raise RunError(f"{path} {what}")
        return cls(path, Recipe.read(path / "recipe.toml"))

    def remove_leftovers(self) -> None:
        """Remove what a killed process was writing; for the one who trains the run, before it does."""
        if self.writes:
            remove_unfinished(self.path)

    def _check_same_recipe(self) -> None:
        try:
            there = Recipe.read(self._recipe_file).to_dict()
        except RecipeError as error:
            raise RunError(f"{self.path} holds a run that cannot be read: {error}") from None
        if there != self.recipe.to_dict():
            change = first_difference(there, self.recipe.to_dict())
            raise RunError(
                f"{self.path} holds a run of another recipe ({change}): choose another output directory"
            )

    @property
    def _recipe_file(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per line and epoch."""
        return self.path / "metrics.jsonl"

    @property
    def network_file(self) -> Path:
        """The weights of the chosen network."""
        return self.path / "checkpoint" / "network.safetensors"

    @property
    def result_file(self) -> Path:
        """Everything the run found out; there when it is finished."""
        return self.path / "result.json"

    def result(self) -> dict[str, Any] | None:
        """What is in ``result.json``, or ``None`` if the run is not finished."""
        if not self.result_file.exists():
            return None
        result: dict[str, Any] = json.loads(self.result_file.read_text(encoding="utf-8"))
        return result

    def write_result(self, result: dict[str, Any]) -> None:
        """Finish the run."""
        self._write(self.result_file, lambda file: write_json(file, result))

    def _write(self, file: Path, write: Callable[[Path], None]) -> None:
        if not self.writes:
            return
        try:
            write(file)
        except (OSError, SafetensorError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise RunError(
                f"cannot write {file}: {reason}. All that was written before is whole: mend that, and the "
                "same command goes on from the last checkpoint"
            ) from None

    def write_queries(self, scores: RetrievalScores, labels: Tensor) -> None:
        """Keep the test scores with the values of every query, made with ``per_query=True``."""
        assert scores.per_query is not None
        means = {name: value for name, value in vars(scores).items() if name != "per_query"}
        tensors = vars(scores.per_query) | {"labels": labels}
        self._write(self._queries_file, lambda file: _write_tensors(file, tensors, means))

    def queries(self) -> tuple[RetrievalScores, Tensor] | None:
        """The test scores with the values of every query, and the labels of the test images.

        ``None`` if the run has not kept them.
        """
        if not self._queries_file.exists():
            return None
        try:
            tensors, means = vars(_read_tensors(self._queries_file)).values()
        except _DamagedError as damage:
            raise RunError(f"{self._queries_file} is damaged ({damage})") from None
        means["recall_at"] = {int(k): value for k, value in means["recall_at"].items()}
        labels = tensors.pop("labels")
        return RetrievalScores(**means, per_query=PerQuery(**tensors)), labels

    def write_cost(self, cost: dict[str, float | int]) -> None:
        """Keep what the run took: the one thing about it that differs from time to time."""
        self._write(self._cost_file, lambda file: write_json(file, cost))

    def cost(self) -> dict[str, float | int] | None:
        """Seconds and bytes that the run took, if it is finished."""
        if not self._cost_file.exists():
            return None
        cost: dict[str, float | int] = json.loads(self._cost_file.read_text(encoding="utf-8"))
        return cost

    @property
    def _queries_file(self) -> Path:
        return self.path / "test_queries.safetensors"

    @property
    def _cost_file(self) -> Path:
        return self.path / "cost.json"

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a last line cut short by a crash is left out."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace all lines of ``metrics.jsonl``."""
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        self._write(self.metrics_file, lambda file: write_text(file, lines))

    def write_network(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights of the chosen network."""
        self._write(self.network_file, lambda file: _write_tensors(file, weights, {}))

    def read_network(self) -> dict[str, Tensor]:
        """The weights of the chosen network."""
        if not self.network_file.exists():
            raise RunError(f"{self.path} has no trained network yet: run nearkin train again to finish it")
        try:
            return _read_tensors(self.network_file).tensors
        except _DamagedError as damage:
            raise RunError(f"{self.network_file} is damaged ({damage})") from None

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoint").glob("step-*.safetensors"))

    def write_checkpoint(self, step: int, checkpoint: Checkpoint) -> None:
        """Keep a moment, and the one before it in case the disk damages this one."""

        def write(file: Path) -> None:
            _write_tensors(file, checkpoint.tensors, checkpoint.state)
            for old in self._checkpoints()[:-_KEPT_CHECKPOINTS]:
                old.unlink()

        self._write(self.path / "checkpoint" / f"step-{step:09d}.safetensors", write)

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest moment that can be read; a damaged one is passed over with a warning."""
        for file in reversed(self._checkpoints()):
            try:
                return _read_tensors(file)
            except _DamagedError as damage:  # noqa: PERF203
                warnings.warn(f"{file} is damaged ({damage}): going on from the one before", stacklevel=2)
        return None


def first_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first key at which two recipes differ, with both values.

    >>> first_difference({"loss": {"name": "nca"}}, {"loss": {"name": "npair"}})
    "loss.name is 'nca' there, 'npair' here"
    """
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict) and before != after:
            return f"{key}.{first_difference(before, after)}"
        if before != after:
            return f"{key} is {before!r} there, {after!r} here"
    raise ValueError("the two do not differ")


class _DamagedError(Exception):
    """A file of tensors that is not what was written."""


def _digest(tensors: dict[str, Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(name.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_tensors(file: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    on_cpu = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(state)
    with atomic_path(file) as temporary:
        save_file(on_cpu, temporary, metadata={"state": text, "digest": _digest(on_cpu, text)})


def _read_tensors(file: Path) -> Checkpoint:
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata()
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if _digest(tensors, metadata["state"]) != metadata["digest"]:
            raise _DamagedError("its contents do not match its digest")
        return Checkpoint(tensors, json.loads(metadata["state"]))
    except (SafetensorError, KeyError, TypeError, OSError) as error:
        raise _DamagedError(str(error)) from None
