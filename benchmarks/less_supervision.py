"""Fewer labels and wrong labels on CUB200-2011: the page and the table of what came of two packaged plans.

    nearkin benchmark less_supervision --set recipe.data.root=… --set recipe.network.weights=… -o RUNS
    nearkin benchmark noisy_labels --set recipe.data.root=… --set recipe.network.weights=… -o NOISY
    python benchmarks/less_supervision.py RUNS NOISY --page docs/results/less_supervision.md

Writes a CSV file with a line per run beside the page. What has not been run yet is missing in both.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modifiers import Cell, cell_of
from nearkin.atomic import write_text
from nearkin.evaluation import mean_intervals
from nearkin.tournament.outcomes import Outcome, read_outcomes

FEWER = ("unsupervised", "semi_supervised", "few_images")
ALONE = "labels_only"
METHODS = (ALONE, "instance", "pseudo_labels", "stml")
POINT = 1.0
"""What a method without labels is asked to add to the frozen features."""


class Contest(NamedTuple):
    """What is compared with itself under other labels.

    Attributes:
        protocol: ``unsupervised`` and so on.
        amount: Of labels or of wrong ones: a share of classes, images of every class, a share of labels.
        contender: A method for what has no label, or under wrong labels a loss.
    """

    protocol: str
    amount: float
    contender: str


def contest_of(outcome: Outcome) -> Contest:
    """Where a run belongs."""
    assert outcome.result is not None
    recipe = outcome.result.recipe
    protocol = recipe["protocol"]
    name = protocol["name"]
    if name == "noisy_labels":
        return Contest(name, protocol["share"], outcome.loss)
    method = (recipe.get("unlabelled") or {}).get("name") or ALONE
    amounts = {
        "unsupervised": 0.0,
        "semi_supervised": protocol.get("labelled_classes"),
        "few_images": protocol.get("images_per_class"),
    }
    return Contest(name, float(amounts[name]), method)


def contests(folders: Sequence[Path]) -> dict[Contest, list[Outcome]]:
    """All finished runs, by what they are part of, in order of the seeds."""
    found: dict[Contest, list[Outcome]] = defaultdict(list)
    for outcome in read_outcomes(folders).outcomes:
        if outcome.kind == "run":
            found[contest_of(outcome)].append(outcome)
    for contest, outcomes in found.items():
        refuse_mixture(contest, outcomes)
    return {key: sorted(found[key], key=lambda one: one.seed or 0) for key in sorted(found)}


def refuse_mixture(contest: Contest, outcomes: Sequence[Outcome]) -> None:
    """Runs that differ in anything but the seed are not averaged, nor is a seed counted twice."""
    first, *others = outcomes
    for other in others:
        same = _but_for_the_seed(first) == _but_for_the_seed(other)
        if not same or other.seed in {one.seed for one in outcomes if one is not other}:
            raise SystemExit(
                f"{first.source} and {other.source} are both runs of {contest}, but "
                f"{'have the same seed' if same else 'differ in more than the seed'}: give one study"
            )


def _but_for_the_seed(outcome: Outcome) -> dict[str, Any]:
    assert outcome.result is not None
    return {key: value for key, value in outcome.result.recipe.items() if key != "seed"}


def lines_of(found: Mapping[Contest, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """A line per run, in plain values."""
    lines = []
    for contest, outcomes in found.items():
        for outcome in outcomes:
            assert outcome.result is not None
            start = outcome.result.start
            gain = None if start is None else start.gain
            lines.append(
                {
                    **contest._asdict(),
                    "loss": outcome.loss,
                    "seed": outcome.seed,
                    "precision": outcome.result.recipe["training"]["precision"],
                    "recall_at_1": outcome.scores["recall_at_1"],
                    "map_at_r": outcome.scores["map_at_r"],
                    "frozen_recall_at_1": None if start is None else start.test.recall_at[1],
                    "gain_low": None if gain is None else gain.low,
                    "gain_high": None if gain is None else gain.high,
                }
            )
    return lines


def shown(cell: Cell) -> str:
    """Mean Recall@1 over the seeds in per cent, with its interval over classes."""
    around = mean_intervals({"recall": 100 * cell.right}, cell.labels)["recall"]
    return f"{100 * statistics.fmean(cell.scores.values()):.2f} ({around.low:.1f} to {around.high:.1f})"


def difference(cell: Cell, other: Cell) -> str:
    """The first minus the second in points, with an interval over classes."""
    around = mean_intervals({"difference": 100 * (cell.right - other.right)}, cell.labels)["difference"]
    return f"{around.value:+.2f}; {around.low:+.2f} to {around.high:+.2f}"


def gain_over_frozen(lines: Sequence[Mapping[str, Any]]) -> tuple[float, float, float] | None:
    """Points above the frozen features: the mean over seeds, and the ends of all their intervals."""
    known = [line for line in lines if line["gain_low"] is not None]
    if not known:
        return None
    gains = [line["recall_at_1"] - line["frozen_recall_at_1"] for line in known]
    low, high = min(line["gain_low"] for line in known), max(line["gain_high"] for line in known)
    return 100 * statistics.fmean(gains), 100 * low, 100 * high


def named(contest: Contest) -> str:
    """The amount of labels in words."""
    if contest.protocol == "unsupervised":
        return "no labels"
    if contest.protocol == "few_images":
        return f"{contest.amount:.0f} images of every class"
    return f"{100 * contest.amount:.0f} % of the classes"


def fewer_labels(found: Mapping[Contest, Sequence[Outcome]]) -> list[str]:
    """The table of the methods by how many labels there are."""
    cells = {key: cell_of(outcomes) for key, outcomes in found.items() if key.protocol in FEWER}
    rows: dict[tuple[str, float], dict[str, Contest]] = defaultdict(dict)
    for key in cells:
        rows[key.protocol, key.amount][key.contender] = key
    header = ["the labelled part alone", *(name.replace("_", " ") for name in METHODS[1:])]
    lines = [f"| labels | {' | '.join(header)} |", f"|---|{'---:|' * len(header)}"]
    for _, row in sorted(rows.items(), key=lambda one: (FEWER.index(one[0][0]), one[0][1])):
        texts = []
        for method in METHODS:
            key = row.get(method)
            text = "–" if key is None else shown(cells[key])
            if key is not None and method != ALONE and ALONE in row:
                text += f" [{difference(cells[key], cells[row[ALONE]])}]"
            texts.append(text)
        lines.append(f"| {named(next(iter(row.values())))} | {' | '.join(texts)} |")
    return lines


def without_labels(found: Mapping[Contest, Sequence[Outcome]]) -> list[str]:
    """What learning without labels adds to the frozen features, in sentences."""
    sentences = []
    for key, outcomes in found.items():
        gain = gain_over_frozen(lines_of({key: outcomes})) if key.protocol == "unsupervised" else None
        if gain is None:
            continue
        value, low, high = gain
        told = "so it helps" if low > 0 else "so it hurts" if high < 0 else "which may be chance"
        enough = "at least" if value >= POINT else "less than"
        points = f"{value:+.2f} points ({low:+.2f} to {high:+.2f})"
        sentences.append(f"- **{key.contender}**: {points}, {told}; that is {enough} {POINT:g} point.")
    return sentences


def wrong_labels(found: Mapping[Contest, Sequence[Outcome]]) -> list[str]:
    """The table of the losses by the share of wrong labels, the most robust one first."""
    cells = {key: cell_of(outcomes) for key, outcomes in found.items() if key.protocol == "noisy_labels"}
    shares = sorted({key.amount for key in cells})
    losses: dict[str, dict[float, Cell]] = defaultdict(dict)
    for key, cell in cells.items():
        losses[key.contender][key.amount] = cell
    header = [f"{100 * share:.0f} % wrong" for share in shares]
    lines = [
        f"| loss | {' | '.join(header)} | from first to last |",
        f"|---|{'---:|' * (len(shares) + 1)}",
    ]

    def fall(row: Mapping[float, Cell]) -> float:
        mean = {share: float(cell.right.mean()) for share, cell in row.items()}
        return mean.get(shares[0], 1.0) - mean.get(shares[-1], 0.0)

    for loss, row in sorted(losses.items(), key=lambda one: fall(one[1])):
        texts = [shown(row[share]) if share in row else "–" for share in shares]
        ends = (row.get(shares[-1]), row.get(shares[0]))
        last = "–" if ends[0] is None or ends[1] is None else difference(ends[0], ends[1])
        lines.append(f"| {loss} | {' | '.join(texts)} | {last} |")
    return lines


def page(found: Mapping[Contest, Sequence[Outcome]]) -> str:
    """The page."""
    lines = lines_of(found)
    seeds = sorted({line["seed"] for line in lines})
    frozen = sorted(
        {
            f"{100 * line['frozen_recall_at_1']:.2f}"
            for line in lines
            if line["frozen_recall_at_1"] is not None
        }
    )
    text = [
        "# Learning from less on CUB200-2011",
        "",
        "EfficientNet-Lite0 after a cached trunk, 512 dimensions; the test classes keep their labels, under",
        "seal, and the last epoch counts. Mean Recall@1 on the test classes in per cent over seeds",
        f"{', '.join(map(str, seeds))}, in brackets a 95 % interval over test classes.",
        "[less_supervision.csv](less_supervision.csv) has a line per run. Made by",
        "`benchmarks/less_supervision.py`; nobody edits it.",
        "",
        f"The frozen features that all of these start from find {' and '.join(frozen)} %.",
    ]
    if any(key.protocol in FEWER for key in found):
        text += [
            "",
            "## Fewer labels",
            "",
            "Multi-similarity on what is labelled; what is not is left out, or learnt from by one of three",
            "methods. In square brackets: points beside the labelled part alone, with the interval of the",
            "difference.",
            "",
            *fewer_labels(found),
            "",
            "Without any label, beside the frozen features: the mean, and the ends of all seeds' intervals",
            "over classes.",
            "",
            *without_labels(found),
        ]
    if any(key.protocol == "noisy_labels" for key in found):
        text += [
            "",
            "## Wrong labels",
            "",
            "A share of the training labels is replaced by that of another class, drawn uniformly; the same",
            "ones for every loss. The loss that falls least comes first.",
            "",
            *wrong_labels(found),
        ]
    return "\n".join(text) + "\n"


def as_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """The lines as a CSV file."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def parsed(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with the runs of both plans")
    parser.add_argument("--page", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    found = contests(options.folders)
    if not found:
        raise SystemExit(f"no finished runs in {', '.join(map(str, options.folders))}")
    options.page.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.page, page(found))
    write_text(options.page.with_suffix(".csv"), as_csv(lines_of(found)))


if __name__ == "__main__":
    main()
