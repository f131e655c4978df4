"""What the pages under docs/results say is what their CSV says."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from nearkin.tournament.published import VALIDATION, published
from nearkin.tournament.sweeps import Mean
from test_documents import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESULTS = ROOT / "docs" / "results"
STUDIES = sorted(path for path in RESULTS.iterdir() if path.is_dir())
CUB = RESULTS / "cub200"


def rows(study: Path) -> list[dict[str, str]]:
    with (study / "runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def recall(contender: str, dimensions: int) -> list[float]:
    """Recall@1 in per cent on the test classes, by seed."""
    found = [
        one for one in rows(CUB) if (one["contender"], one["dimensions"]) == (contender, str(dimensions))
    ]
    return [100 * float(one["test_recall_at_1"]) for one in sorted(found, key=lambda one: one["seed"])]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def page(name: str) -> str:
    return (RESULTS / name).read_text(encoding="utf-8")


def losses_of_the_study() -> list[str]:
    return sorted({one["contender"] for one in rows(CUB) if one["kind"] == "run"})


@pytest.fixture(scope="module")
def archiving():
    path = ROOT / "benchmarks" / "archive_study.py"
    spec = importlib.util.spec_from_file_location("archive_study", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_study_is_a_report_a_csv_and_an_archive(study):
    assert {path.name for path in study.iterdir()} == {"report.html", "runs.csv", "recipes.zip"}
    assert (RESULTS / f"{study.name}.md").exists()


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_report_points_to_nothing_that_was_left_behind(study):
    targets = set(re.findall(r'href="([^"#]+)"', (study / "report.html").read_text(encoding="utf-8")))
    assert targets == {"runs.csv", "recipes.zip"}


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_run_has_a_recipe_that_says_the_same(study):
    runs = [one for one in rows(study) if one["kind"] == "run"]
    with zipfile.ZipFile(study / "recipes.zip") as archive:
        recipes = {name: tomllib.loads(archive.read(name).decode()) for name in archive.namelist()}
    assert sorted(recipes) == sorted(one["recipe"] for one in runs)
    for one in runs:
        recipe = recipes[one["recipe"]]
        assert recipe["loss"]["name"] == one["contender"]
        assert recipe["network"]["embedding_dim"] == int(one["dimensions"])
        assert recipe["seed"] == int(one["seed"])
        assert recipe["terms"] == one["terms"]


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_seed_counts_once(study):
    keys = [(one["kind"], one["contender"], one["dimensions"], one["seed"]) for one in rows(study)]
    assert len(set(keys)) == len(keys)


def test_the_table_of_cub200_is_the_csvs():
    found = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]+) \|$", page("cub200.md"), flags=re.MULTILINE)
    means: list[float] = []
    table = {name: cells for name, *cells in found if name != "loss"}
    assert sorted(table) == losses_of_the_study()
    for name, cells in table.items():
        for dimensions, cell in zip((128, 512), cells, strict=True):
            seeds = recall(name, dimensions)
            assert cell == f"{mean(seeds):.1f} ({', '.join(f'{seed:.1f}' for seed in seeds)})"
        means.append(mean(recall(name, 128)) + mean(recall(name, 512)))
    assert means == sorted(means, reverse=True)


def test_the_baselines_of_cub200_are_the_csvs():
    text = " ".join(page("cub200.md").split())
    one = {(name, size): f"{recall(name, size)[0]:.1f}" for size in (128, 512) for name in baselines()}
    frozen, components, whitened = (
        {one[name, 128], one[name, 512]} for name in ("frozen_features", "pca", "rca")
    )
    assert len(frozen) == 1
    assert f"frozen features score {frozen.pop()}" in text
    assert len(components) == len(whitened) == 2
    assert f"components {one['pca', 128]} with 128 dimensions and {one['pca', 512]} with 512" in text
    assert f"RCA on top of them {one['rca', 128]} and {one['rca', 512]}" in text
    assert f"raw pixels {one['raw_pixels', 128]}" in text
    for name, shown in {"lda": "LDA", "lmnn": "LMNN", "linear_nca": "linear NCA"}.items():
        assert f"{shown} ({one[name, 128]} and {one[name, 512]})" in text


def baselines() -> set[str]:
    return {one["contender"] for one in rows(CUB) if one["kind"] == "baseline"}


def test_the_differences_that_the_page_of_cub200_draws():
    text = " ".join(page("cub200.md").split())
    gains = defaultdict(list)
    others = [name for name in losses_of_the_study() if name != "npair"]
    for size in (128, 512):
        for name in others:
            gains[size].append(mean(recall(name, size)) - recall("pca", size)[0])
            assert mean(recall(name, size)) > recall("rca", size)[0]
        lost = recall("pca", size)[0] - mean(recall("npair", size))
        assert f"{lost:.1f}" == {128: "0.7", 512: "0.8"}[size]
    (low, high), (low_512, high_512) = ((min(gains[size]), max(gains[size])) for size in (128, 512))
    said = f"by {low:.0f} to {high:.1f} points at 128 dimensions and {low_512:.1f} to {high_512:.1f} at 512"
    assert said in text
    larger = [mean(recall(name, 512)) - mean(recall(name, 128)) for name in losses_of_the_study()]
    assert f"by {min(larger):.1f} to {max(larger):.1f} points" in text
    spreads = [max(gains[size]) - min(gains[size]) for size in (128, 512)]
    assert f"within {spreads[0]:.1f} points at 128 dimensions and {spreads[1]:.1f} at 512" in text


def test_npair_is_last_but_for_one_seed():
    others = [name for name in losses_of_the_study() if name != "npair"]
    for size in (128, 512):
        assert all(mean(recall("npair", size)) < mean(recall(name, size)) for name in others)
    behind = {
        (size, seed): [name for name in others if recall(name, size)[seed] < recall("npair", size)[seed]]
        for size in (128, 512)
        for seed in range(3)
    }
    assert {key: names for key, names in behind.items() if names} == {(512, 2): ["proxy_anchor"]}
    assert "every seed but one" in page("cub200.md")


def test_where_proxy_anchor_stands():
    for size, place in {128: 5, 512: 9}.items():
        order = sorted(losses_of_the_study(), key=lambda name, size=size: -mean(recall(name, size)))
        assert order.index("proxy_anchor") + 1 == place
        assert {"margin", "lifted_structure"} <= set(order[:3])
    seeds = recall("proxy_anchor", 512)
    spread = {
        name: max(recall(name, size)) - min(recall(name, size))
        for size in (128, 512)
        for name in losses_of_the_study()
    }
    assert f"{max(seeds) - min(seeds):.0f}" == "3"
    assert f"{max(spread.values()):.0f}" == "3"
    assert "fifth and ninth" in page("cub200.md")


def test_the_unguided_row_of_the_language_page_is_the_csvs():
    seeds = recall("multi_similarity", 512)
    cells = [f"{value:.2f}" for value in [*seeds, mean(seeds)]]
    assert f"| multi-similarity | {' | '.join(cells)} |" in page("language.md")


def test_the_guided_rows_mean_and_cost_follow_from_its_seeds():
    guided = re.search(r"\| with language guidance \| (.+) \|", page("language.md"))
    *seeds, shown = map(float, guided[1].split(" | "))
    assert f"{mean(seeds):.2f}" == f"{shown:.2f}"
    assert f"costs {mean(recall('multi_similarity', 512)) - shown:.1f} points" in page("language.md")


def test_runs_on_equal_terms_share_a_key_and_others_do_not(archiving):
    recipe = {
        "terms": "equal",
        "seed": 0,
        "loss": {"name": "a"},
        "network": {"embedding_dim": 8, "name": "n"},
        "sampler": {"name": "random"},
    }
    key = archiving.terms_key(recipe)
    assert key == archiving.terms_key(recipe | {"seed": 1, "loss": {"name": "b"}})
    assert key == archiving.terms_key(recipe | {"network": {"embedding_dim": 9, "name": "n"}})
    assert key != archiving.terms_key(recipe | {"sampler": {"name": "balanced"}})
    assert key != archiving.terms_key(recipe | {"network": {"embedding_dim": 8, "name": "m"}})


def test_archiving_keeps_scores_recipes_and_the_report(archiving, tmp_path):
    run = tmp_path / "study" / "runs" / "only"
    run.mkdir(parents=True)
    recipe = {"terms": "equal", "seed": 3, "loss": {"name": "margin"}, "network": {"embedding_dim": 8}}
    scores = dict.fromkeys(archiving.SCORES, 0.5) | {"queries": 9}
    result = {"recipe": recipe, "test": scores, "validation": None, "selection": {"epoch": 2}}
    (run / "result.json").write_text(json.dumps(result))
    (run / "cost.json").write_text(json.dumps({"training_seconds": 1.5}))
    (run / "recipe.toml").write_text("seed = 3\n")
    report = '<a href="runs/only/">x</a><footer>The same in <a href="report.md">Markdown</a>.</footer>'
    (tmp_path / "study" / "report.html").write_text(report)
    for target in ("first", "second"):
        archiving.archive(tmp_path / "study", tmp_path / target)
    (one,) = rows(tmp_path / "first")
    assert (one["contender"], one["seed"], one["epoch"]) == ("margin", "3", "2")
    assert one["test_recall_at_1"] == "0.5"
    assert one["validation_recall_at_1"] == ""
    assert 'href="runs/' not in (tmp_path / "first" / "report.html").read_text()
    assert (tmp_path / "first" / "recipes.zip").read_bytes() == (
        tmp_path / "second" / "recipes.zip"
    ).read_bytes()


def table_of(name: str) -> list[dict[str, float]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return [{key: float(value) for key, value in one.items()} for one in csv.DictReader(file)]


def split_scores(share: float, key: str) -> list[float]:
    return [100 * one[key] for one in table_of("split_ratios.csv") if one["validation_share"] == share]


def test_the_table_of_splits_is_the_csvs_beside_the_thesis():
    printed = {
        round(int(one.contender.rpartition("/")[2]) / 100, 4): one.scores
        for one in published("thesis_table_14")
    }
    for share in (0.3, 0.2, 0.1, 0.05):
        cells = [f"{round(100 - 100 * share)}/{round(100 * share)}"]
        for key in ("validation_recall_at_1", "test_recall_at_1"):
            seeds = split_scores(share, key)
            assert len(seeds) == 3
            found = Mean.of_shares([value / 100 for value in seeds], 0.05)
            low, high = found.interval
            cells.append(f"{100 * found.value:.2f} ({100 * low:.1f} to {100 * high:.1f})")
        cells += [f"{100 * printed[share][key]:.2f}" for key in (VALIDATION, "recall_at_1")]
        assert f"| {' | '.join(cells)} |" in page("split_ratios.md")


def test_what_the_page_of_splits_concludes():
    text = " ".join(page("split_ratios.md").split())
    tests = {share: split_scores(share, "test_recall_at_1") for share in (0.3, 0.2, 0.1, 0.05)}
    spread = max(max(seeds) - min(seeds) for seeds in tests.values())
    means = {share: mean(seeds) for share, seeds in tests.items()}
    assert f"up to {spread:.1f} points apart" in text
    assert f"the means of the four splits {max(means.values()) - min(means.values()):.1f}" in text
    assert max(means, key=means.get) == 0.1
    runs = table_of("split_ratios.csv")
    assert [one["epoch"] for one in runs if one["validation_share"] == 0.05] == [4, 1, 4]
    assert {one["epoch"] for one in runs if one["validation_share"] != 0.05} == {5, 6}
    assert min(runs, key=lambda one: one["test_recall_at_1"])["epoch"] == 1
    for share, seeds in tests.items():
        differences = [one - two for one, two in zip(tests[0.1], seeds, strict=True)]
        if share != 0.1:
            assert Mean.of(differences, 0.05 / 3).interval[0] < 0, "cannot be told apart"


def test_the_table_of_the_search_is_the_csvs_beside_the_thesis():
    trials, text = table_of("thesis_search.csv"), page("thesis_search.md")
    assert len(trials) == 122
    start = 0
    kept = {"alpha": 2.0, "beta": 50.0, "margin": 0.5, "epsilon": 0.1}
    defaults, names = dict(kept), {"alpha": "α", "beta": "β", "margin": "margin λ", "epsilon": "ε"}
    near = {}
    for key, count, thesis in (
        ("alpha", 50, 18),
        ("beta", 50, 76),
        ("margin", 11, 0.8),
        ("epsilon", 11, 0.4),
    ):
        block = trials[start : start + count]
        start += count
        assert len({one[key] for one in block}) == count
        assert all(one[other] == kept[other] for one in block for other in kept if other != key)
        best = max(block, key=lambda one: one["validation_map_at_r"])
        kept[key] = best[key]
        scores = [100 * one["validation_map_at_r"] for one in block]
        near[key] = sum(max(scores) - score < 0.5 for score in scores)
        cells = [
            f"{defaults[key]:g}",
            f"{best[key]:g}",
            f"{max(scores):.2f}",
            f"{min(scores):.2f}",
            f"{thesis:g}",
        ]
        assert re.search(rf"\| {names[key]} \| [^|]+ \| {count} \| {re.escape(' | '.join(cells))} \|", text)
    assert (near["alpha"], near["beta"]) == (6, 11)
    gained = 100 * (max(one["validation_map_at_r"] for one in trials) - trials[0]["validation_map_at_r"])
    assert f"gained {gained:.2f} points" in text
    default = next(one for one in table_of("split_ratios.csv") if one["validation_share"] == 0.3)
    assert f"| {100 * default['test_recall_at_1']:.2f} | 21.28 |" in text


def test_what_the_defaults_give_on_cub_is_the_csvs():
    with (RESULTS / "photographs.csv").open(encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    assert [one["seed"] for one in runs] == ["0", "1", "2"]
    scores = [100 * float(one["test_recall_at_1"]) for one in runs]
    (frozen,) = {f"{100 * float(one['frozen_recall_at_1']):.1f}" for one in runs}
    text = " ".join((ROOT / "docs" / "photographs.md").read_text(encoding="utf-8").split())
    assert f"give Recall@1 {mean(scores):.1f} % on the hundred test classes" in text
    assert f"three seeds ({', '.join(f'{one:.1f}' for one in scores)};" in text
    assert f"the frozen features give {frozen} %" in text
