"""A run's directory: recipe, metrics, checkpoints and result, whole at every moment."""

from __future__ import annotations

import html
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from nearkin.atomic import is_unfinished, remove_unfinished, write_json, write_text
from nearkin.evaluation import PerQuery, RetrievalScores, Threshold
from nearkin.extras import data_frame
from nearkin.tensor_files import DamagedFileError, TensorFile, read_tensors, write_tensors
from nearkin.training.distributed import is_first_process
from nearkin.training.result import Result
from nearkin.training.shards import orphans, read_sharded, remove_sharded, shards_of, write_sharded

if TYPE_CHECKING:
    import pandas as pd

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEPT_CHECKPOINTS = 2
_LOCK = ".lock"
SELECTION = "selection"
"""The folder of a training that only chose how long the run's own training lasts."""
_OF_A_FAILED_START = frozenset({"recipe.toml", "run.json", _LOCK, "error.txt", "output.txt"})

NEUTRAL_KEYS = frozenset(
    {
        "data.root",
        "data.workers",
        "evaluation.batch_size",
        "loss.memory_map",
        "evaluation.false_accept_rate",
        "network.trunk_cache",
        "protocol.audit",
        "training.checkpoint_minutes",
        "training.trackers",
    }
)
"""Settings that change where and how fast a run is made or how it is used, and none of its scores."""


class RunError(ValueError):
    """A run directory that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Description:
    """What a run is, in words.

    Attributes:
        text: ``recipe.toml``: what was said, with everything else in comments.
        terms: Every setting in plain values: said, chosen or by default.
        chosen: Settings that were left open, each with the reason for the value it got.
    """

    text: str = ""
    terms: dict[str, Any] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)


Checkpoint = TensorFile
"""The state of a run: weights, optimiser state and generators; the place in the plan in plain values."""


class Run:
    """A run's directory.

    ``recipe.toml`` says what the run is and ``run.json`` every setting of it, ``metrics.jsonl`` has a line
    per epoch, ``checkpoint/`` the last two checkpoints and, in the end, the chosen network.
    ``threshold.json`` has the similarity from which on two samples are taken for the same.
    ``test_queries.safetensors`` has the test score of every query, for comparisons between runs, and
    ``cost.json`` what the run took; ``result.json`` is there when it is finished. With ``protocol.audit`` the
    network of every epoch lies in ``audit/`` until ``audit.json`` has the test scores of all.

    Use :meth:`open` to begin or continue a run, and :meth:`existing` to read one.

    Attributes:
        path: The directory.
        description: What the run is.
        writes: Whether this process writes the files: of several that train together, the first does, and
            in the others everything that writes does nothing.
    """

    def __init__(self, path: str | os.PathLike[str], description: Description) -> None:
        self.path = Path(path)
        self.description = description
        self.writes = is_first_process()

    @classmethod
    def open(cls, path: str | os.PathLike[str], description: Description) -> Run:
        """A run in a new directory, or the one that is there if its settings are the same.

        Nothing is written yet: :meth:`begin` does that, when everything a training needs is at hand.

        Raises:
            RunError: The directory holds another run, or something else.
        """
        run = cls(path, description)
        if run.writes:
            try:
                run._check_directory()
                if not run.finished:
                    _check_writable(run.path)
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
        return cls(path, _read_description(path))

    def begin(self) -> None:
        """Write down what the run is; from now on the directory is this run's."""
        if not self.writes:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / "run.json").exists() or not self._is_started():
                terms = {"terms": self.description.terms, "chosen": self.description.chosen}
                write_text(self._recipe_file, self.description.text)
                write_json(self.path / "run.json", terms)
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}") from None

    def remove_failed_start(self) -> None:
        """Leave nothing of a run that broke off before it had anything to continue from."""
        if self.writes and self.path.is_dir() and not self._is_started() and not self._has_other_files():
            shutil.rmtree(self.path, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Remove what a killed process was writing; for the one who trains the run, before it does."""
        if self.writes:
            remove_unfinished(self.path)
            for shard in list(orphans(self.path / "checkpoint", self._checkpoints())):
                shard.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run while it is trained; the system frees it when its holder dies.

        Raises:
            RunError: Another process has it.
        """
        if not self.writes:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = lock_of(self.path).acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"another process is training in {self.path}: wait for it, or choose another output directory"
            ) from None
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}") from None
        with lock:
            yield

    def chosen_before(self) -> dict[str, tuple[Any, str]]:
        """What was chosen when the run in this directory began, with the reasons, where nobody says it now.

        A run that goes on keeps these values, also on another machine or beside other files of weights.
        """
        if not (self._recipe_file.exists() and self._is_started()):
            return {}
        before = _read_description(self.path)
        said = tomllib.loads(self.description.text)
        found: dict[str, tuple[Any, str]] = {}
        for key, reason in before.chosen.items():
            table, _, name = key.partition(".")
            value = _table(before.terms, table).get(name)
            if name not in _table(said, table) and value not in (None, {}):
                found[key] = value, reason
        return found

    def _is_started(self) -> bool:
        """Whether there is anything to continue from, in a fold of it or its own."""
        of_folds = [*self.path.glob("fold-*/metrics.jsonl"), *self.path.glob(f"{SELECTION}*/metrics.jsonl")]
        own = self.metrics_file.exists() or self.result_file.exists() or bool(self._checkpoints())
        return own or any(of_folds)

    def _has_other_files(self) -> bool:
        """Whether there are files that no failed start leaves behind."""
        files = (entry for entry in self.path.rglob("*") if entry.is_file())
        return not all(_is_of_a_failed_start(entry, self.path) for entry in files)

    def _check_directory(self) -> None:
        """Refuse a directory that holds something else; a run that never started gives way."""
        in_the_way = next((one for one in (self.path, *self.path.parents) if one.is_file()), None)
        if in_the_way is not None:
            raise RunError(f"cannot write to {self.path}: {in_the_way} is a file, not a directory")
        if self._recipe_file.exists():
            if self._is_started():
                self._check_same_terms()
            return
        if self._has_other_files():
            raise RunError(f"{self.path} holds other files and no run: choose another output directory")

    def _check_same_terms(self) -> None:
        before = _read_description(self.path)
        there = without_neutral_keys(before.terms)
        here = without_neutral_keys(json.loads(json.dumps(self.description.terms)))
        said = tomllib.loads(self.description.text)
        for key in before.chosen:  # what nobody says was chosen to fit the data, and is again
            table, _, name = key.partition(".")
            if name not in _table(said, table):
                # Where a name was chosen, its keywords are those of another entry than the default's.
                forgotten = [name] if name != "name" else {*_table(there, table), *_table(here, table)}
                for one in forgotten:
                    if one not in _table(said, table):
                        _table(there, table).pop(one, None)
                        _table(here, table).pop(one, None)
        if there != here:
            change = first_difference(there, here)
            raise RunError(
                f"{self.path} holds a run of another recipe ({change}): choose another output directory"
            )

    @property
    def terms(self) -> dict[str, Any]:
        """Every setting of the run in plain values."""
        return self.description.terms

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

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return self.result_file.exists()

    @cached_property
    def result(self) -> Result:
        """Everything the run found out.

        Raises:
            RunError: The run is not finished, or its result cannot be read.
        """
        if not self.finished:
            raise RunError(f"{self.path} is not finished: run the same command again to continue it")
        try:
            return Result.from_dict(json.loads(self.result_file.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.result_file} cannot be read: {error!r}") from None

    def write_result(self, result: Result) -> None:
        """Finish the run; checkpoints, and the network of a first training, go: nobody needs them."""
        self._write(self.result_file, lambda file: write_json(file, result.to_dict()))
        self.__dict__["result"] = result
        self.remove_checkpoints()
        if self.writes:
            shutil.rmtree(self.selection_path / "checkpoint", ignore_errors=True)

    def remove_checkpoints(self) -> None:
        """Remove what only a training that goes on would need."""
        if self.writes:
            for file in self._checkpoints():
                remove_sharded(file)

    def _write(self, file: Path, write: Callable[[Path], None]) -> None:
        if not self.writes:
            return
        try:
            write(file)
        except (OSError, SafetensorError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise RunError(
                f"cannot write {file}: {reason}. Everything written before is intact: solve that, and "
                "the same command goes on from the last checkpoint"
            ) from None

    def write_queries(self, scores: RetrievalScores, labels: Tensor) -> None:
        """Keep the test scores with the values of every query, made with ``per_query=True``."""
        assert scores.per_query is not None
        means = {name: value for name, value in vars(scores).items() if name != "per_query"}
        tensors = vars(scores.per_query) | {"labels": labels}
        self._write(self._queries_file, lambda file: write_tensors(file, tensors, means))

    def queries(self) -> tuple[RetrievalScores, Tensor] | None:
        """The test scores with the values of every query, and the labels of the test samples.

        ``None`` if the run has not kept them.
        """
        if not self._queries_file.exists():
            return None
        try:
            tensors, means = read_tensors(self._queries_file)
        except DamagedFileError as damage:
            raise RunError(f"{self._queries_file} is damaged ({damage})") from None
        means["recall_at"] = {int(k): value for k, value in means["recall_at"].items()}
        labels = tensors.pop("labels")
        return RetrievalScores(**means, per_query=PerQuery(**tensors)), labels

    def parts(self) -> list[tuple[RetrievalScores, Tensor]]:
        """The queries of every network behind the result: one, or one per fold; empty if not all are kept."""
        own = self.queries()
        if own is not None:
            return [own]
        kept = [Run.existing(self.path / one.run).queries() for one in self.result.networks if one.run != "."]
        return [one for one in kept if one is not None] if None not in kept else []

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

    @property
    def selection_path(self) -> Path:
        """The directory of a training that only chose how long the run's own lasts, if there was one."""
        return self.path / SELECTION

    def selection_metrics(self) -> list[dict[str, Any]]:
        """The epochs among which one was chosen: those of the first training where there were two."""
        return Run(self.selection_path, self.description).metrics() or self.metrics()

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace all lines of ``metrics.jsonl``."""
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        self._write(self.metrics_file, lambda file: write_text(file, lines))

    def write_network(
        self, weights: dict[str, Tensor], about: dict[str, Any], threshold: Threshold | None = None
    ) -> None:
        """Keep the weights of the chosen network, in ``model.json`` how to build it, and its threshold."""
        if threshold is not None:
            self._write(self.path / "threshold.json", lambda file: write_json(file, threshold.to_dict()))
        self._write(self.network_file, lambda file: write_tensors(file, weights))
        self._write(self.path / "model.json", lambda file: write_json(file, about))

    def read_network(self) -> dict[str, Tensor]:
        """The weights of the chosen network."""
        if not self.network_file.exists():
            raise RunError(f"{self.path} has no trained network yet: run nearkin train again to finish it")
        try:
            return read_tensors(self.network_file).tensors
        except DamagedFileError as damage:
            raise RunError(f"{self.network_file} is damaged ({damage})") from None

    def write_epoch(self, epoch: int, weights: dict[str, Tensor]) -> None:
        """Keep the trained part of the network as it is after an epoch, apart."""
        self._write(self._epoch_file(epoch), lambda file: write_tensors(file, weights))

    def kept_epochs(self) -> list[int]:
        """The epochs whose networks are kept apart, in order."""
        return sorted(
            int(file.stem.removeprefix("epoch-")) for file in self._audit_folder.glob("epoch-*.safetensors")
        )

    def read_epoch(self, epoch: int) -> dict[str, Tensor]:
        """The trained part of the network after an epoch."""
        try:
            return read_tensors(self._epoch_file(epoch)).tensors
        except DamagedFileError as damage:
            raise RunError(f"{self._epoch_file(epoch)} is damaged ({damage})") from None

    def write_audit(self, audit: dict[str, Any]) -> None:
        """Keep the test scores of all epochs; their networks are not needed any more and go."""
        self._write(self.audit_file, lambda file: write_json(file, audit))
        self.remove_epochs()

    def remove_epochs(self) -> None:
        """Remove the networks of all epochs that are kept apart, those of a first training as well."""
        if self.writes:
            for folder in (self._audit_folder, self.selection_path / self._audit_folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def audit_file(self) -> Path:
        """The test scores of all epochs, written after the selection; not there without an audit."""
        return self.path / "audit.json"

    @property
    def _audit_folder(self) -> Path:
        return self.path / "audit"

    def _epoch_file(self, epoch: int) -> Path:
        return self._audit_folder / f"epoch-{epoch:06d}.safetensors"

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoint").glob("step-*.safetensors"))

    def write_checkpoint(self, step: int, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and keep the one before it in case the disk damages this one.

        Large tensors go into shards. Of a checkpoint that needs them only the last is kept, and the one
        before it until that is whole: proxies of a million classes are too large to keep twice.
        """

        def write(file: Path) -> None:
            write_sharded(file, checkpoint.tensors, checkpoint.state)
            kept = 1 if shards_of(file) else _KEPT_CHECKPOINTS
            for old in self._checkpoints()[:-kept]:
                remove_sharded(old)

        self._write(self.path / "checkpoint" / f"step-{step:09d}.safetensors", write)

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that can be read; a damaged one is passed over with a warning."""
        for file in reversed(self._checkpoints()):
            try:
                return read_sharded(file)
            except DamagedFileError as damage:  # noqa: PERF203
                warnings.warn(f"{file} is damaged ({damage}): going on from the one before", stacklevel=2)
        return None

    def to_pandas(self) -> pd.DataFrame:
        """A row per epoch, as in ``metrics.jsonl``."""
        return data_frame(self.metrics())

    def __repr__(self) -> str:
        return (
            f"Run({str(self.path)!r}, {'finished' if self.finished else f'{self._epochs()} epochs so far'})"
        )

    def __str__(self) -> str:
        return f"{self.path}\n{self.result}" if self.finished else repr(self)

    def _repr_html_(self) -> str:
        told = html.escape(str(self.path))
        inside = self.result._repr_html_() if self.finished else f"<p>{self._epochs()} epochs so far</p>"
        return f"<p><b>{told}</b></p>{inside}"

    def _epochs(self) -> int:
        rows = self.metrics()
        return int(rows[-1]["epoch"]) if rows else 0


def _check_writable(path: Path) -> None:
    """Raise the ``OSError`` that writing there would raise, and leave nothing."""
    folder = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    with tempfile.TemporaryFile(dir=folder):
        pass


def lock_of(path: Path) -> FileLock:
    """The lock that the process that trains a run holds; taking it twice in one process is fine."""
    return FileLock(path / _LOCK, is_singleton=True)


def is_taken(path: Path) -> bool:
    """Whether somebody trains in a directory now."""
    lock = lock_of(path)
    if lock.is_locked:  # by this process, which could take it again
        return True
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def _is_of_a_failed_start(entry: Path, folder: Path) -> bool:
    in_a_fold = entry.parent.parent == folder and entry.parent.name.startswith(("fold-", SELECTION))
    at_home = entry.parent == folder or in_a_fold
    return is_unfinished(entry) or (at_home and entry.name in _OF_A_FAILED_START)


def _read_description(path: Path) -> Description:
    """From ``run.json``; runs of the first edition have all settings in ``recipe.toml``."""
    try:
        text = (path / "recipe.toml").read_text(encoding="utf-8")
        if (path / "run.json").exists():
            plain = json.loads((path / "run.json").read_text(encoding="utf-8"))
            return Description(text, plain["terms"], plain.get("chosen", {}))
        return Description(text, tomllib.loads(text))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} holds a run that cannot be read: {error}") from None


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def without_neutral_keys(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that change no number: neutral keys, and what is not set at all.

    So a run goes on that began before there was a key, unless the key is set now.
    """
    return {
        section: {
            key: value
            for key, value in values.items()
            if f"{section}.{key}" not in NEUTRAL_KEYS and value is not None
        }
        if isinstance(values, Mapping)
        else values
        for section, values in terms.items()
    }


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first key at which two recipes differ, with both values.

    >>> first_difference({"loss": {"name": "nca"}}, {"loss": {"name": "npair"}})
    "loss.name is 'nca' there, 'npair' here"
    """
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping) and before != after:
            if before.get("name") == after.get("name") and before.get("given") != after.get("given"):
                return f"the {key} that was given in Python is another one here"
            return f"{key}.{first_difference(before, after)}"
        if before != after:
            return f"{key} is {before!r} there, {after!r} here"
    raise ValueError("the two do not differ")
