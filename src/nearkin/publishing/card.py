"""The model card: what a reader must know to use, believe or repeat a model, from what its run disclosed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

import nearkin
from nearkin.evaluation import Interval
from nearkin.evaluation.spread import mean_intervals
from nearkin.model import Model
from nearkin.protocols import chooses_on_test
from nearkin.publishing.origin import Origin
from nearkin.publishing.plain import without_paths
from nearkin.publishing.timm_config import timm_name
from nearkin.training import Result, Run

_SCORES = {"map_at_r": "MAP@R", "r_precision": "R-precision", "mean_reciprocal_rank": "mean reciprocal rank"}
_LISTED_CLASSES = 6
_WORDS = {True: "yes", False: "no", None: "none"}


def card(model: Model, origin: Origin, *, name: str, license_: str, repository: str | None = None) -> str:
    """The README of a repository: metadata for the Hub, then the card."""
    result = None if origin.run is None else origin.run.result
    template = Environment(  # noqa: S701  (Markdown: nothing is to be escaped as HTML)
        loader=PackageLoader("nearkin.publishing"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template("card.md.j2")
    return template.render(
        metadata=metadata(model, result, name=name, license_=license_),
        name=name,
        repository=repository,
        folder=name,
        model=model,
        networks=[_told_network(one.network.spec) for one in model.embedders],
        expected=model.embedders[0].network.preprocessing,
        timm=timm_name(model.embedders[0].network),
        imports=_imports(model),
        origin=origin,
        result=result,
        scores=[] if result is None or origin.run is None else _scores(result, origin.run),
        data="" if result is None else _data_name(result),
        splits=[] if result is None else _splits(result),
        settings=[] if result is None else _settings(result),
        libraries={} if result is None else result.disclosure.get("libraries", {}),
        caveats=caveats(model, origin),
        license=license_,
        version=nearkin.__version__,
    )


def metadata(model: Model, result: Result | None, *, name: str, license_: str) -> str:
    """The YAML between the dashes, from which the Hub makes filters and a table of results."""
    images = model.embedders[0].network.preprocessing is not None
    task = "image-feature-extraction" if images else "feature-extraction"
    known = timm_name(model.embedders[0].network)
    told: dict[str, Any] = {
        "library_name": "nearkin",
        "pipeline_tag": task,
        "license": license_,
        "tags": ["metric-learning", "embeddings", "retrieval", "nearkin", *(["timm"] if known else [])],
    }
    if result is not None:
        data = _data_name(result)
        metrics = [
            {"type": f"recall_at_{k}", "name": f"Recall@{k}", "value": round(100 * value, 2)}
            for k, value in result.test.recall_at.items()
        ]
        metrics.append({"type": "map_at_r", "name": "MAP@R", "value": round(100 * result.test.map_at_r, 2)})
        told["metrics"] = ["recall"]
        told["model-index"] = [
            {
                "name": name,
                "results": [
                    {
                        "task": {"type": task, "name": "Retrieval of classes that were not trained on"},
                        "dataset": {"type": data, "name": data, "split": "test"},
                        "metrics": metrics,
                    }
                ],
            }
        ]
    return _yaml(told)


def _yaml(value: Any, indent: str = "") -> str:
    """Plain values as YAML; words are quoted as in JSON, which YAML reads.

    >>> print(_yaml({"a": ["b", {"c": 1, "d": 2}]}))
    a:
      - "b"
      - c: 1
        d: 2
    """
    lines: list[str] = []
    for key, one in value.items():
        if isinstance(one, Mapping):
            lines += [f"{indent}{key}:", _yaml(one, f"{indent}  ")]
        elif isinstance(one, list):
            lines.append(f"{indent}{key}:")
            for item in one:
                if isinstance(item, Mapping):
                    inside = _yaml(item, f"{indent}    ")
                    lines.append(f"{indent}  - {inside.lstrip()}")
                else:
                    lines.append(f"{indent}  - {json.dumps(item, ensure_ascii=False)}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(one, ensure_ascii=False)}")
    return "\n".join(lines)


def _data_name(result: Result) -> str:
    """The name of the data set; a folder or table of one's own is called as its file is."""
    data = result.recipe.get("data", {})
    if not isinstance(data, Mapping):
        return str(data)
    own = data.get("name") in ("folder", "table") and data.get("root")
    return PurePath(str(data["root"])).stem if own else str(data.get("name"))


def _told_network(spec: Mapping[str, Any] | None) -> str:
    return str((spec or {}).get("name") or (spec or {}).get("object") or "a module of one's own")


def _imports(model: Model) -> list[str]:
    """Modules that whoever loads the model needs beside nearkin."""
    from nearkin.model import describe  # noqa: PLC0415

    told = [describe(one) for one in model.embedders]
    objects = [str(one["network"]["object"]).partition(":")[0] for one in told if "object" in one["network"]]
    return sorted({*objects, *(name for one in told for name in one["imports"])})


@dataclass(frozen=True)
class _Score:
    """A row of the table of scores, in words."""

    name: str
    test: str
    interval: str
    deviation: str
    start: str
    validation: str


def _scores(result: Result, run: Run) -> list[_Score]:
    columns: dict[str, Mapping[str, Any]] = {
        "test": result.test.to_dict(),
        "deviation": result.test_deviation or {},
        "start": {} if result.start is None else result.start.test.to_dict(),
        "validation": {} if result.validation is None else result.validation.to_dict(),
    }
    spread = intervals(run)
    rows = [f"recall_at_{k}" for k in result.test.recall_at]
    return [
        _Score(
            name=_score_name(key),
            interval=_interval(spread.get(key)),
            **{column: _percent(values.get(key)) for column, values in columns.items()},
        )
        for key in [*rows, *(one for one in _SCORES if one in columns["test"])]
    ]


def intervals(run: Run) -> dict[str, Interval]:
    """Every test score of a run with its interval over classes; empty where the queries are not kept.

    Of several networks, that of the mean of their values for every query.
    """
    parts = run.parts()
    if not parts:
        return {}
    first, labels = parts[0]
    assert first.per_query is not None
    classes = labels[first.per_query.indices]
    if len(classes.unique()) < 2:
        return {}
    kept = [one.per_query.scores(list(one.recall_at)) for one, _ in parts if one.per_query is not None]
    means = {name: torch.stack([one[name].double() for one in kept]).mean(dim=0) for name in kept[0]}
    return mean_intervals(means, classes, seed=int(run.terms.get("seed", 0)))


def _score_name(key: str) -> str:
    return _SCORES.get(key) or f"Recall@{key.removeprefix('recall_at_')}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _interval(found: Interval | None) -> str:
    return "" if found is None else f"{100 * found.low:.2f} to {100 * found.high:.2f}"


def _splits(result: Result) -> list[tuple[str, str, str, str, str]]:
    """Name, samples, classes, some class names and fingerprint of every split."""
    data = result.data
    if data is None:
        return []
    found = {"training": data.train, "validation": data.validation, "test": data.test}
    return [
        (name, f"{one.samples:,}", f"{one.classes:,}", _named(one.class_names), one.fingerprint[:12])
        for name, one in found.items()
        if one is not None
    ]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(map(_cell, names[:_LISTED_CLASSES]))
    return f"{shown}, …" if len(names) > _LISTED_CLASSES else shown


def _settings(result: Result) -> list[tuple[str, str]]:
    """Everything that the score depends on, a line each, in the words of a methods section."""
    told = {key: value for key, value in result.disclosure.items() if key != "libraries"}
    found = _flat(without_paths(told))
    found["selection"] = result.rule + ("" if result.epoch is None else f", epoch {result.epoch}")
    protocol = result.recipe.get("protocol", {})
    for key, value in (protocol if isinstance(protocol, Mapping) else {"name": protocol}).items():
        found["protocol" if key == "name" else f"protocol: {key}"] = _words(value)
    return [(_cell(key), _cell(value)) for key, value in found.items()]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as ``table: key``, with words as values; empty tables are left out.

    >>> _flat({"loss": "triplet", "hyperparameters": {"margin": 0.1, "hard": True}, "modifiers": {}})
    {'loss': 'triplet', 'hyperparameters: margin': '0.1', 'hyperparameters: hard': 'yes'}
    """
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}: ")
        else:
            flat[f"{prefix}{key}"] = _words(value)
    return flat


def _words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    return str(value)


def _cell(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def caveats(model: Model, origin: Origin) -> list[str]:
    """What a model is not for, as far as it follows from how it was made."""
    found = [
        "It is no classifier: it says how alike two samples are, by a cosine from −1 to 1 that is not a "
        "probability.",
        "It is not for deciding about people, and not for anything where a wrong match does harm that nobody "
        "checks.",
    ]
    if origin.run is None:
        return [*found, "How it was trained and tested is not known here: measure it on your own data first."]
    result = origin.run.result
    found.append(
        f"Its scores are of {result.test.queries:,} queries of the data set {_data_name(result)} and of no "
        "others: samples of another kind, camera or origin may be embedded much worse. Measure it on yours."
    )
    if origin.final:
        found.append(
            "These weights were trained on all classes, those of the test included. The scores above are of "
            "the network that was trained without them, and estimate what this one does on new classes."
        )
    if origin.fold is not None:
        found.append("The scores above are means over all folds; these weights are those of one of them.")
    if result.start is not None and result.start.verdict != "helped":
        found.append(f"Training {result.start.verdict}, compared with its start ({result.start.name}).")
    if chooses_on_test(str(result.recipe.get("protocol", {}).get("name", ""))):
        found.append("The epoch was chosen on the test classes, so the test scores are too good.")
    if model.threshold is None:
        found.append("It has no threshold for “same or not”: choose one with `model.choose_threshold`.")
    return [*found, *(f"Warning of the training: {_cell(without_paths(text))}" for text in result.warnings)]
