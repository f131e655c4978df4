from __future__ import annotations

import json
import statistics

import pytest
from scipy import stats

from nearkin.benchmark.plan import Plan
from nearkin.tournament import rank_outcomes, read_outcomes
from nearkin.tournament.report import write_report
from nearkin.tournament.report.sweeps import sweep_sections
from nearkin.tournament.sweeps import Mean, sweeps

SHARES = (0.3, 0.2, 0.1, 0.05)


def with_validation(path, score: float, classes: int):
    """A made-up run's own validation score and classes."""
    file = path / "result.json"
    values = json.loads(file.read_text())
    for place in (values, *values["networks"]):
        place["validation"]["recall_at_1"] = score
    held_out = {"samples": 10 * classes, "classes": classes, "fingerprint": "", "class_names": []}
    values["networks"][0]["data"]["validation"] = held_out
    file.write_text(json.dumps(values))


@pytest.fixture
def splits(make_run, tmp_path):
    for seed in (0, 1, 2):
        for number, share in enumerate(SHARES):
            changes = {"protocol.validation_share": share}
            path = make_run("multi_similarity", noise=1.0 + 0.4 * number, seed=seed, **changes)
            with_validation(path, 0.8 + 0.02 * number + 0.001 * seed, round(100 * share))
    return read_outcomes([tmp_path / "runs"]).outcomes


def test_the_plan_is_table_14():
    runs = Plan.find("split_ratios").runs()
    shares = [run.recipe.protocol.keywords["validation_share"] for run in runs]
    assert sorted(set(shares)) == sorted(SHARES)
    assert {run.recipe.seed for run in runs} == {0, 1, 2}
    assert {run.recipe.loss.name for run in runs} == {"multi_similarity"}
    assert runs[0].name == "cub200-efficientnet_lite0-multi_similarity-512-70_30-seed0"


def test_one_swept_setting_is_found_and_reported_beside_table_14(splits, tmp_path):
    (sweep,) = sweeps(splits, "recall_at_1")
    assert sweep.key == "protocol.validation_share"
    assert [one.value for one in sweep.values] == sorted(SHARES)
    for one in sweep.values:
        scores = [run.scores["recall_at_1"] for run in one.runs]
        assert sorted(run.seed for run in one.runs) == [0, 1, 2]
        low, high = stats.t.interval(
            0.95, 2, loc=statistics.fmean(scores), scale=statistics.stdev(scores) / 3**0.5
        )
        assert one.test.value == pytest.approx(statistics.fmean(scores))
        assert one.test.interval == pytest.approx((low, high))
        assert one.validation_classes == round(100 * one.value)
    assert sweep.best_on_test.value == 0.3  # the least noise
    assert sweep.best_on_validation.value == 0.05
    assert not sweep.validation_compares
    check_differences(sweep)
    check_report(splits, tmp_path)


def check_differences(sweep):
    worst = min(sweep.values, key=lambda one: one.test.value)
    found = sweep.difference(sweep.best_on_test, worst)
    by_seed = [
        sweep.best_on_test.test_by_seed("recall_at_1")[s] - worst.test_by_seed("recall_at_1")[s]
        for s in range(3)
    ]
    assert found == Mean.of(by_seed, 0.05)
    ahead, level = sweep.told_apart()
    assert {one.value for one in (*ahead, *level)} == {0.05, 0.1, 0.2}


def check_report(splits, tmp_path):
    standings = rank_outcomes(splits)
    (section,) = sweep_sections(standings)
    cells = {row.cells[0].text: [cell.text for cell in row.cells] for row in section.table.rows}
    assert cells["0.1"][-2:] == ["91.49", "64.38"]
    assert cells["0.05"][-2:] == ["93.31", "62.92"]
    assert any("chosen on the test classes" in note for note in section.notes)
    assert any("different numbers of classes" in note for note in section.notes)
    assert [panel.label for panel in section.chart.panels] == ["validation", "test"]
    assert [tick.text for tick in section.chart.x_ticks] == ["0.05", "0.1", "0.2", "0.3"]
    assert all(len(panel.lines) == 3 for panel in section.chart.panels)  # a line per seed
    page = write_report(standings, tmp_path / "report", pictures=False).read_text()
    assert "Swept settings" in page
    assert (tmp_path / "report/tables/sweep-1.csv").exists()
    assert r"## Swept: protocol.validation\_share" in (tmp_path / "report/report.md").read_text()


def test_any_setting_can_be_swept_and_two_at_once_cannot(make_run, tmp_path):
    for sampler in ("balanced", "random"):
        make_run("triplet", noise=1.0, **{"sampler.name": sampler})
    make_run("triplet", noise=2.0, **{"sampler.name": "random", "optimizer.lr": 0.5})
    (sampler, rate) = sweeps(read_outcomes([tmp_path / "runs"]).outcomes, "recall_at_1")
    assert (sampler.key, [one.value for one in sampler.values]) == ("sampler.name", ["balanced", "random"])
    assert (rate.key, [one.value for one in rate.values]) == ("optimizer.lr", [0.002, 0.5])
    assert sampler.values[0].test.interval is None  # one seed
    assert sampler.difference(*sampler.values) is None


def test_losses_networks_and_sizes_are_compared_elsewhere(make_run, tmp_path):
    make_run("triplet", noise=1.0)
    make_run("npair", noise=1.0)
    make_run("triplet", noise=1.0, **{"network.embedding_dim": 32})
    assert sweeps(read_outcomes([tmp_path / "runs"]).outcomes, "recall_at_1") == []


def test_an_interval_of_a_share_does_not_leave_its_range():
    mean = Mean.of_shares([0.9, 0.99, 0.93], alpha=0.05)
    low, high = Mean.of([0.9, 0.99, 0.93], alpha=0.05).interval
    assert high > 1
    assert mean.interval == (low, 1.0)
    assert Mean.of_shares([0.9], alpha=0.05).interval is None
