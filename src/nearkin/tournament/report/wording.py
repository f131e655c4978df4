"""How names and numbers are written, the same in every part of the report."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from nearkin.protocols import chooses_on_test, names, registry
from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.report.tables import Kind
from nearkin.tournament.standings import Leaderboard, Place, Standings

_SCORES = {
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
    "mean_reciprocal_rank": "MRR",
    "precision_at_1": "Precision@1",
    "roc_auc": "ROC AUC",
}

_PROTOCOLS = {
    "fixed_validation": "the epoch was chosen on validation classes, and the test classes were opened once",
    "cross_validation": "the epoch was chosen by cross-validation over training classes",
    "standard": "all training classes were learnt from, and the last epoch was tested",
    "as_published": "every paper trained and selected in its own way",
}


def score_name(name: str) -> str:
    """How a score is written.

    >>> score_name("recall_at_1"), score_name("map_at_r")
    ('Recall@1', 'MAP@R')
    """
    if name.startswith("recall_at_"):
        return f"Recall@{name.removeprefix('recall_at_')}"
    return _SCORES.get(name, name.replace("_", " "))


def percent(value: float, digits: int = 1) -> str:
    """A share as per cent, without the sign.

    >>> percent(0.7893)
    '78.9'
    """
    return f"{100 * value:.{digits}f}"


def signed(value: float) -> str:
    """A difference of shares in points, with its sign.

    >>> signed(-0.012)
    '−1.2'
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def p_value(value: float) -> str:
    """A p-value as it is read.

    >>> p_value(0.0004), p_value(0.0321)
    ('< 0.001', '0.032')
    """
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def p_phrase(value: float) -> str:
    """A p-value in a sentence: ``p < 0.001`` or ``p = 0.032``."""
    text = p_value(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def count(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun.

    >>> count(1, "loss", "losses"), count(3, "loss", "losses")
    ('1 loss', '3 losses')
    """
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a sentence; a long list is cut and says how much.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    >>> listed(["a", "b", "c", "d"], most=2)
    'a, b and 2 others'
    """
    names = list(names)
    if len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def protocol_sentence(name: str) -> str:
    """What a protocol means, after its name; of a plug-in's, the first line of its docstring."""
    if name in _PROTOCOLS:
        return _PROTOCOLS[name]
    told = inspect.getdoc(registry.get(name)) if name in registry else None
    return told.partition("\n")[0].rstrip(".") if told else "see the documentation of the protocols"


def protocol_label(name: str) -> str:
    """A protocol's name, with what makes its scores optimistic where they are."""
    return f"{name} (epoch chosen on test)" if chooses_on_test(name) else name


def labelled(text: str) -> str:
    """Text of others with the label after every mention of the protocol that needs it.

    >>> labelled("cub200 · standard_best_on_test has one loss")
    'cub200 · standard_best_on_test (epoch chosen on test) has one loss'
    """
    for name in filter(chooses_on_test, names()):
        text = re.sub(rf"\b{re.escape(name)}\b(?! \()", protocol_label(name), text)
    return text


def experiment_name(experiment: Experiment, *, without: Iterable[str] = ()) -> str:
    """An experiment in one line, without what all experiments of the report have in common."""
    parts = {
        "dataset": experiment.dataset,
        "network": experiment.network,
        "embedding_dim": f"{experiment.embedding_dim}-d" if experiment.embedding_dim else "",
        "protocol": protocol_label(experiment.protocol),
        "detail": experiment.detail,
    }
    hidden = set(without) - ({"protocol"} if chooses_on_test(experiment.protocol) else set())
    shown = [text for key, text in parts.items() if text and key not in hidden]
    return " · ".join(shown or [experiment.dataset])


def in_common(experiments: Sequence[Experiment]) -> set[str]:
    """Which parts of all experiments are the same."""
    return {
        key
        for key in ("dataset", "network", "embedding_dim", "protocol")
        if len({getattr(experiment, key) for experiment in experiments}) == 1
    }


def row_kind(place: Place) -> Kind:
    """How a line is set: baselines apart from what is ranked."""
    return "baseline" if place.kind == "baseline" else "entry"


class Links:
    """Where names and numbers lead, relative to the report's folder.

    Anchors are numbers, whatever others have called their losses.
    """

    def __init__(self, standings: Standings, folder: Path) -> None:
        self._folder = folder.resolve()
        self._boards = {board.experiment: number for number, board in enumerate(standings.leaderboards, 1)}
        first: dict[str, Experiment] = {}
        for outcome in standings.outcomes:
            first.setdefault(outcome.contender, outcome.experiment)
        self._first = first
        self._contenders = {contender: number for number, contender in enumerate(first, 1)}

    def run(self, outcome: Outcome) -> str | None:
        """The directory of a run or baseline."""
        return None if outcome.path is None else quote(self.relative(outcome.path)) + "/"

    def relative(self, path: Path) -> str:
        """A path as seen from the report, so that both can be moved together and no machine is named."""
        return Path(os.path.relpath(path.resolve(), self._folder)).as_posix()

    def place(self, place: Place) -> str:
        """The directory of a line's only run, or else its runs in the report's list."""
        target = self.run(place.outcomes[0]) if len(place.outcomes) == 1 else None
        return target or f"#{self.runs_anchor(place.outcomes[0].experiment, place.contender)}"

    def contender(self, name: str) -> str:
        """A contender's first runs in the report's list."""
        return f"#{self.runs_anchor(self._first[name], name)}"

    def runs_anchor(self, experiment: Experiment, contender: str) -> str:
        """The place of a contender's runs in the report's list."""
        return f"runs-{self._boards[experiment]}-{self._contenders[contender]}"

    def board_anchor(self, board: Leaderboard) -> str:
        """The place of a leaderboard."""
        return f"experiment-{self._boards[board.experiment]}"
