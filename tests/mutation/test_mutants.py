"""The tool itself, and the score on file."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import mutants
import pytest

TEXT = """
def middle(values, low=0):
    if not values or low > 9:
        raise ValueError(f"{low + 1} is too much")
    values.sort()
    total = sum(values) / len(values)
    total += 2
    return total
"""


def test_every_kind_of_change_is_made_and_words_are_left_alone():
    found = [one.words for one in mutants.mutants_of("a.py", TEXT)]
    assert sorted(found) == sorted(
        [
            "0 → 1",
            "if not values or low > 9 → if not not values or low > 9",
            "not values or low > 9 → not values and low > 9",
            "not values → values",
            "low > 9 → low >= 9",
            "9 → 10",
            "raise ValueError(f'{low + 1} is too much') → pass",
            "values.sort() → pass",
            "sum(values) / len(values) → sum(values) * len(values)",
            "total += 2 → total -= 2",
            "total += 2 → pass",
            "2 → 3",
            "return total → return None",
        ]
    )


def test_a_mutant_differs_in_one_place_and_its_name_outlives_moved_lines():
    as_it_is = ast.unparse(ast.parse(TEXT)).splitlines()
    moved = f"import math\n\n{TEXT}"
    names = [one.name for one in mutants.mutants_of("a.py", moved)]
    for one in mutants.mutants_of("a.py", TEXT):
        changed = ast.unparse(mutants.mutated(TEXT, one.change)).splitlines()
        assert len(changed) == len(as_it_is)
        assert sum(a != b for a, b in zip(changed, as_it_is, strict=True)) == 1
        assert one.name in names
        assert one.place == "middle"


def test_equal_changes_in_one_function_have_names_of_their_own():
    names = [one.name for one in mutants.mutants_of("a.py", "def f(x):\n    return (x + 1) * (x + 1)")]
    assert len(names) == len(set(names)) == 6


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_a_larger_sample_begins_with_the_smaller_one(room):
    small, large = (mutants.sample(room, size) for size in (5, 20))
    assert [one.name for one in small] == [one.name for one in large[:5]]
    assert len({one.name for one in large}) == 20


def test_the_tests_of_a_room_begin_with_those_of_the_file():
    found = mutants.tests_of("evaluation/clustering.py")
    assert found[0].endswith("src/nearkin/evaluation/clustering.py")
    assert found[1].endswith("tests/evaluation/test_clustering.py")
    assert len(found) == len(set(found)) > 5


def test_results_are_read_back_and_the_last_word_counts(tmp_path):
    rows = [
        {"mutant": "a", "room": "losses", "outcome": "survived"},
        {"mutant": "b", "room": "losses", "outcome": "out of time"},
        {"mutant": "a", "room": "losses", "outcome": "killed"},
        {"mutant": "c", "room": "mining", "outcome": "survived"},
    ]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = mutants.scores(file)
    assert found["losses"] == mutants.Score(mutants=2, killed=2, explained=0)
    assert found["mining"] == mutants.Score(mutants=1, killed=0, explained=0)
    assert found["mining"].share == 0


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_the_score_on_file_is_85_percent_at_least(room):
    score = mutants.scores()[room]
    assert score.mutants >= 40
    assert score.share >= 0.85, f"{room}: {score}"


def test_only_survivors_are_explained():
    on_file = mutants.read(mutants.RESULTS)
    for name, reason in mutants.explanations().items():
        assert on_file[name]["outcome"] == "survived", name
        assert reason


@pytest.mark.slow
def test_mutants_are_tried_in_children_and_a_second_call_goes_on(tmp_path):
    """Among the first of a room some are killed: they take effect, also in a file read for its doctests."""
    results = tmp_path / "results.jsonl"

    def run(size: int) -> list[str]:
        command = [sys.executable, mutants.HERE / "mutants.py", "run", "--room", "mining", "--sample", size]
        command += ["--results", results]
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if line.startswith("mining ")]

    assert len(run(2)) == 2
    assert len(run(4)) <= 2
    outcomes = [row["outcome"] for row in mutants.read(results).values()]
    assert outcomes.count("killed") >= 2
