"""What a run found out, typed: the object behind ``result.json``."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nearkin.data import SampleSet
from nearkin.evaluation import Interval, PairScores, RetrievalScores, Threshold
from nearkin.extras import data_frame

if TYPE_CHECKING:
    import pandas as pd

    from nearkin.networks.embedder import Embedder

_FORMAT = 2
_LISTED_CLASSES = 20_000  # more names than that would make a result larger than the network


@dataclass(frozen=True)
class SplitSummary:
    """What a split of the data held.

    Attributes:
        samples: How many.
        classes: How many.
        class_names: All of them; empty in old results, and where they are too many.
        fingerprint: Changes when a sample or a label does; empty in old results.
    """

    samples: int
    classes: int
    class_names: tuple[str, ...] = ()
    fingerprint: str = ""

    @classmethod
    def of(cls, samples: SampleSet) -> SplitSummary:
        """Of a split at hand."""
        names = samples.class_names if samples.num_classes <= _LISTED_CLASSES else ()
        return cls(len(samples), samples.num_classes, tuple(names), samples.fingerprint())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "samples": self.samples,
            "classes": self.classes,
            "fingerprint": self.fingerprint,
            "class_names": list(self.class_names),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SplitSummary:
        """The inverse of :meth:`to_dict`; reads old results, which count images."""
        return cls(
            values["samples"] if "samples" in values else values["images"],
            values["classes"],
            tuple(values.get("class_names", ())),
            values.get("fingerprint", ""),
        )


@dataclass(frozen=True)
class DataSummary:
    """What a training learnt from, was selected on and was tested on.

    Attributes:
        train: The training split.
        validation: The classes that selected the epoch, if any were held out.
        test: The test split.
        notes: What a reader should know about the data.
    """

    train: SplitSummary
    validation: SplitSummary | None = None
    test: SplitSummary | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        splits = {name: getattr(self, name) for name in ("train", "validation", "test")}
        return {name: None if one is None else one.to_dict() for name, one in splits.items()} | {
            "notes": list(self.notes)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataSummary:
        """The inverse of :meth:`to_dict`."""
        splits = {
            name: None if values.get(name) is None else SplitSummary.from_dict(values[name])
            for name in ("train", "validation", "test")
        }
        return cls(**splits, notes=tuple(values.get("notes", ())))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TestEmbeddings:
    """The test samples as a network sees them, with their scores.

    Attributes:
        queries: The samples that search.
        query_embeddings: The embeddings of all queries ``(Q, D)``.
        gallery: The samples that are found; ``None`` where queries search each other.
        gallery_embeddings: The embeddings of the whole gallery ``(G, D)``.
        scores: Retrieval scores, with the values of every query.
    """

    __test__ = False  # not a test of pytest's

    queries: SampleSet
    query_embeddings: Tensor
    gallery: SampleSet | None
    gallery_embeddings: Tensor | None
    scores: RetrievalScores


@dataclass(frozen=True)
class NetworkResult:
    """One trained network of a run.

    Attributes:
        rule: How its epoch was selected, in words.
        epoch: The selected epoch, counted from 1.
        data: What it learnt from, was selected on and was tested on.
        validation: Scores of that epoch on the validation classes, if there were any.
        test: Scores on the test classes, once they have been opened.
        warnings: What the watchdogs said, a line each.
        run: Its directory below the run's: ``.``, or ``fold-00``.
        threshold: From which similarity on two samples are taken for the same; chosen on the validation
            classes, ``None`` where there were none, or too few.
        embedder: The network itself, where it is still in memory.
        test_by_size: Test scores of the first dimensions alone, by their number, after a Matryoshka.
        verification: Scores of the known pairs of the test samples, where the data is of pairs.
        directions: Of two modalities, test scores of both directions of search, such as ``text_to_image``;
            ``test`` is the first of them.
    """

    rule: str
    epoch: int | None
    data: DataSummary
    validation: RetrievalScores | None = None
    test: RetrievalScores | None = None
    warnings: tuple[str, ...] = ()
    run: str = "."
    threshold: Threshold | None = None
    embedder: Embedder | None = field(default=None, repr=False, compare=False)
    test_by_size: dict[int, RetrievalScores] = field(default_factory=dict)
    verification: PairScores | None = None
    directions: dict[str, RetrievalScores] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = {
            "run": self.run,
            "selection": {"rule": self.rule, "epoch": self.epoch},
            "validation": None if self.validation is None else self.validation.to_dict(),
            "test": None if self.test is None else self.test.to_dict(),
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
            "warnings": list(self.warnings),
            "data": self.data.to_dict(),
        }
        if self.test_by_size:
            plain["test_by_size"] = {str(size): one.to_dict() for size, one in self.test_by_size.items()}
        if self.verification is not None:
            plain["verification"] = self.verification.to_dict()
        if self.directions:
            plain["directions"] = {name: one.to_dict() for name, one in self.directions.items()}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NetworkResult:
        """The inverse of :meth:`to_dict`."""
        return cls(
            rule=values["selection"]["rule"],
            epoch=values["selection"]["epoch"],
            data=DataSummary.from_dict(values["data"]),
            validation=_scores(values.get("validation")),
            test=_scores(values.get("test")),
            test_by_size={
                int(size): _required_scores(scores) for size, scores in values.get("test_by_size", {}).items()
            },
            warnings=tuple(values.get("warnings", ())),
            run=values.get("run", "."),
            threshold=None if values.get("threshold") is None else Threshold.from_dict(values["threshold"]),
            verification=_pair_scores(values.get("verification")),
            directions=_directions(values),
        )


@dataclass(frozen=True)
class Baseline:
    """What a result is of that no training made.

    Attributes:
        name: Such as ``frozen_features``.
        description: What it is, in a few words.
        fitted_on: How many samples and classes it was fitted on, where it was.
        test_fingerprint: The fingerprint of the test split that it was scored on; empty in old results.
        roc_auc: Of the known pairs of the test samples, where the data is of pairs.
    """

    name: str
    description: str
    fitted_on: dict[str, int] | None = None
    test_fingerprint: str = ""
    roc_auc: float | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Baseline:
        """Of plain values; reads old results, which count images."""
        fitted_on = values.get("fitted_on")
        if fitted_on is not None:
            fitted_on = {"samples" if key == "images" else key: count for key, count in fitted_on.items()}
        return cls(values["name"], values["description"], fitted_on, roc_auc=values.get("roc_auc"))


@dataclass(frozen=True)
class Start:
    """What a training started from, on the same test classes: without it nobody knows whether it helped.

    Attributes:
        name: ``frozen features`` of a pretrained network, or ``untrained network``.
        test: Its scores.
        gain: What training added to the first Recall@k (its mean over networks), with its interval over
            classes; ``None`` where fewer than two classes have queries. Of data of pairs, to their ROC AUC.
        verification: Its scores of the known pairs, where the data is of pairs.
        directions: Of two modalities, its scores of both directions of search.
    """

    name: str
    test: RetrievalScores
    gain: Interval | None = None
    verification: PairScores | None = None
    directions: dict[str, RetrievalScores] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``helped``, ``hurt``, or ``made no difference that these classes can show``."""
        if self.gain is None or self.gain.low <= 0 <= self.gain.high:
            return "made no difference that these classes can show"
        return "helped" if self.gain.value > 0 else "hurt"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        gain = None if self.gain is None else self.gain.to_dict()
        plain: dict[str, Any] = {"name": self.name, "test": self.test.to_dict(), "gain": gain}
        if self.verification is not None:
            plain["verification"] = self.verification.to_dict()
        if self.directions:
            plain["directions"] = {name: one.to_dict() for name, one in self.directions.items()}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Start:
        """The inverse of :meth:`to_dict`."""
        gain = values.get("gain")
        return cls(
            values["name"],
            _required_scores(values["test"]),
            None if gain is None else Interval(**gain),
            _pair_scores(values.get("verification")),
            _directions(values),
        )


@dataclass(frozen=True)
class Result:
    """Everything a run found out; what ``result.json`` holds.

    Attributes:
        recipe: Every setting of the run in plain values, the chosen ones and the defaults included.
        networks: The trained networks: one, or one per fold. Empty for a baseline.
        test: Scores on the test classes; the mean over the networks where there are several.
        test_deviation: Standard deviation (n − 1) of each test score over the networks; ``None`` with one.
        concatenated: Scores of all networks' embeddings side by side; ``None`` with one network.
        validation: Scores on validation classes, likewise the mean; ``None`` where none were held out.
        chosen: Settings that the recipe left open, each with the reason for the value it got.
        disclosure: Everything the score depends on, in the words of a methods section.
        network: Number of parameters and preprocessing.
        start: What the training started from, on the same test classes; ``None`` in old results.
        baseline: What was scored, if no training made it.
        opened: The test samples as the network sees them, where they are still in memory.
    """

    recipe: dict[str, Any]
    networks: tuple[NetworkResult, ...]
    test: RetrievalScores
    test_deviation: dict[str, float] | None = None
    concatenated: RetrievalScores | None = None
    validation: RetrievalScores | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    disclosure: dict[str, Any] = field(default_factory=dict, repr=False)
    network: dict[str, Any] = field(default_factory=dict, repr=False)
    start: Start | None = None
    baseline: Baseline | None = None
    opened: TestEmbeddings | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, networks: Sequence[NetworkResult], **rest: Any) -> Result:
        """Of tested networks: scores are means over them."""
        tests = [one.test for one in networks if one.test is not None]
        validations = [one.validation for one in networks if one.validation is not None]
        several = len(networks) > 1
        return cls(
            networks=tuple(networks),
            test=mean_scores(tests),
            test_deviation=over_networks(statistics.stdev, tests) if several else None,
            validation=mean_scores(validations) if len(validations) == len(networks) else None,
            **rest,
        )

    @property
    def rule(self) -> str:
        """How the tested network was selected, in words."""
        if self.baseline is not None:
            return "not trained"
        if len(self.networks) == 1:
            return self.networks[0].rule
        return f"mean of {len(self.networks)} folds, {self.networks[0].rule}"

    @property
    def epoch(self) -> int | None:
        """The selected epoch; ``None`` where there are several networks."""
        return self.networks[0].epoch if len(self.networks) == 1 else None

    @property
    def threshold(self) -> Threshold | None:
        """From which similarity on two samples are taken for the same.

        ``None`` without validation classes, and with several networks: each has its own, and there is no
        class that all of them have not learnt from, on which one for all could be chosen.
        """
        return self.networks[0].threshold if len(self.networks) == 1 else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the watchdogs said, a line each."""
        if len(self.networks) == 1:
            return self.networks[0].warnings
        return tuple(f"{one.run}: {text}" for one in self.networks for text in one.warnings)

    @property
    def test_by_size(self) -> dict[int, RetrievalScores]:
        """Test scores of the first dimensions alone, by their number; means where there are several networks.

        Empty but for networks that a Matryoshka trained.
        """
        sizes = self.networks[0].test_by_size if self.networks else {}
        return {size: mean_scores([one.test_by_size[size] for one in self.networks]) for size in sizes}

    @property
    def verification(self) -> PairScores | None:
        """Scores of the known pairs of the test samples; ``None`` for data of classes.

        With several networks ``None`` as well: each has its own, at its own threshold.
        """
        return self.networks[0].verification if len(self.networks) == 1 else None

    @property
    def directions(self) -> dict[str, RetrievalScores]:
        """Of two modalities, test scores of both directions of search; means over several networks.

        Empty for one modality.
        """
        names = self.networks[0].directions if self.networks else {}
        return {name: mean_scores([one.directions[name] for one in self.networks]) for name in names}

    @property
    def data(self) -> DataSummary | None:
        """What the (first) network learnt from, was selected on and was tested on."""
        return self.networks[0].data if self.networks else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain: dict[str, Any] = {
            "format": _FORMAT,
            "test": self.test.to_dict(),
            "validation": None if self.validation is None else self.validation.to_dict(),
            "selection": {"rule": self.rule, "epoch": self.epoch},
            "test_deviation": self.test_deviation,
            "start": None if self.start is None else self.start.to_dict(),
            "concatenated": None if self.concatenated is None else self.concatenated.to_dict(),
            **({} if self.verification is None else {"verification": self.verification.to_dict()}),
            "warnings": list(self.warnings),
            "recipe": self.recipe,
            "chosen": self.chosen,
            "network": self.network,
            "disclosure": self.disclosure,
            "networks": [one.to_dict() for one in self.networks],
        }
        if self.baseline is not None:
            plain["baseline"] = {f.name: getattr(self.baseline, f.name) for f in fields(self.baseline)}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """The inverse of :meth:`to_dict`; reads the results of the first edition as well."""
        if "baseline" in values:
            networks: list[Mapping[str, Any]] = []
        elif "networks" in values:
            networks = values["networks"]
        elif "folds" in values:
            networks = _folds_of_the_first_edition(values)
        else:
            networks = [values]
        baseline = values.get("baseline")
        return cls(
            recipe=dict(values["recipe"]),
            networks=tuple(NetworkResult.from_dict(one) for one in networks),
            test=_required_scores(values["test"]),
            test_deviation=values.get("test_deviation", values.get("test_standard_deviation")),
            concatenated=_scores(values.get("concatenated")),
            validation=_scores(values.get("validation")),
            chosen=dict(values.get("chosen", {})),
            disclosure=dict(values.get("disclosure", {})),
            network=dict(values.get("network", {})),
            start=None if values.get("start") is None else Start.from_dict(values["start"]),
            baseline=None if baseline is None else Baseline.from_dict(baseline),
        )

    def with_opened(self, opened: TestEmbeddings) -> Result:
        """The same result with the test embeddings at hand."""
        return replace(self, opened=opened)

    def to_pandas(self) -> pd.DataFrame:
        """A row per network (and, with several, their mean): selection, validation and test scores."""
        return data_frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """What :meth:`to_pandas` shows, as plain rows."""
        rows = [_row(one.run, one.epoch, one.validation, one.test) for one in self.networks]
        if len(rows) != 1:
            rows.append(_row("mean" if rows else "baseline", None, self.validation, self.test))
        return rows

    def __str__(self) -> str:
        k, recall = next(iter(self.test.recall_at.items()))
        lines = [f"Recall@{k} {100 * recall:.2f} % on {self.test.queries:,} test queries"]
        if self.test_deviation is not None:
            lines[0] += (
                f" (± {100 * self.test_deviation[f'recall_at_{k}']:.2f} over {len(self.networks)} networks)"
            )
        lines[0] += f", MAP@R {100 * self.test.map_at_r:.2f} %"
        for name, scores in self.directions.items():
            lines.append(f"{name.replace('_', ' ')}: Recall@{k} {100 * scores.recall_at[k]:.2f} %")
        if self.verification is not None:
            lines.insert(0, told_pairs(self.verification))
        if self.start is not None:
            before = f"{100 * self.start.test.recall_at[k]:.2f} %"
            if self.start.verification is not None:
                before = f"ROC AUC {100 * self.start.verification.verification.roc_auc:.2f} %"
            lines.append(f"{self.start.name}: {before}; {self.verdict}")
        lines.append(f"selected: {self.rule}" + (f", epoch {self.epoch}" if self.epoch else ""))
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """Whether training helped, in words; empty where nobody measured what it started from."""
        if self.epoch == 0:
            return "nothing was trained: epoch 0 was chosen, the network before training"
        return "" if self.start is None else f"training {self.start.verdict}"

    def _repr_html_(self) -> str:
        rows = self.rows()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in rows
        )
        told = html.escape(self.rule)
        return f"<table><caption>{told}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def told_pairs(scores: PairScores) -> str:
    """What was found of known pairs, in a line."""
    found = scores.verification
    pairs = f"{found.positive_pairs + found.negative_pairs:,} test pairs"
    line = f"ROC AUC {100 * found.roc_auc:.2f} % on {pairs}"
    if scores.accuracy_at_threshold is not None:
        accuracy = f"{100 * scores.accuracy_at_threshold:.2f} %"
        line += f", accuracy {accuracy} at the threshold chosen on validation pairs"
    return line


def _directions(values: Mapping[str, Any]) -> dict[str, RetrievalScores]:
    return {name: _required_scores(one) for name, one in values.get("directions", {}).items()}


def _pair_scores(values: Mapping[str, Any] | None) -> PairScores | None:
    return None if values is None else PairScores.from_dict(values)


def _row(
    name: str, epoch: int | None, validation: RetrievalScores | None, test: RetrievalScores | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"network": name, "epoch": epoch}
    for prefix, scores in (("validation", validation), ("test", test)):
        if scores is not None:
            row |= {
                f"{prefix}_{key}": value
                for key, value in scores.to_dict().items()
                if not key.startswith("queries")
            }
    return row


def _cell(value: Any) -> str:
    return f"{100 * value:.2f} %" if isinstance(value, float) else "" if value is None else str(value)


def over_networks(
    statistic: Callable[[list[float]], float], scores: Sequence[RetrievalScores]
) -> dict[str, float]:
    """A statistic of every score over several networks."""
    plain = [one.to_dict() for one in scores]
    return {name: float(statistic([float(one[name]) for one in plain])) for name in plain[0]}


def mean_scores(scores: Sequence[RetrievalScores]) -> RetrievalScores:
    """The mean of every score over several networks; one network's are themselves."""
    if len(scores) == 1:
        return replace(scores[0], per_query=None)
    means = over_networks(statistics.fmean, scores)
    counts = {name: round(value) for name, value in means.items() if name.startswith("queries")}
    return _required_scores(means | counts)


def _folds_of_the_first_edition(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Its folds have no warnings of their own: these stand together, each with the number of its fold."""
    folds: list[Mapping[str, Any]] = []
    for number, fold in enumerate(values["folds"]):
        prefix = f"fold {number}: "
        own = [text.removeprefix(prefix) for text in values.get("warnings", ()) if text.startswith(prefix)]
        folds.append({**fold, "warnings": own})
    return folds


def _required_scores(values: Mapping[str, Any]) -> RetrievalScores:
    return RetrievalScores.from_dict(values)


def _scores(values: Mapping[str, Any] | None) -> RetrievalScores | None:
    return None if values is None else RetrievalScores.from_dict(values)
