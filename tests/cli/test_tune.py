from __future__ import annotations

import pytest

from nearkin.training import Recipe


def test_tune_searches_then_trains_on_all_classes_and_tests(nearkin, small_recipe, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(Recipe.parse(small_recipe).to_toml())
    command = ["tune", recipe, "--trials", 2, "--range", "optimizer.lr=1e-3:1e-2", "-o", tmp_path / "search"]
    code, out, err = nearkin(*command, "--search-only")
    assert (code, err) == (0, "")
    assert "2 trials on validation classes: 2 done, 0 given up, 0 failed" in out
    assert "optimizer.lr" in out
    assert "test classes" not in out
    assert not (tmp_path / "search" / "best").exists()
    code, out, err = nearkin(*command)
    assert (code, err) == (0, "")
    assert "test classes" in out
    assert (tmp_path / "search" / "best" / "result.json").exists()
    assert (tmp_path / "search" / "history.png").exists()
    assert nearkin(*command)[:2] == (0, out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--range", "loss.margn=0:1"], "loss 'proxy_anchor' has no keyword 'margn': did you mean margin?"),
        (["--sampler", "gird"], "sampler='gird' must be one of: tpe, random, grid"),
        (["--set", "protocol.name=standard"], "a search selects on validation classes"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(options, message, nearkin, tmp_path):
    code, _, err = nearkin("tune", *options, "-o", tmp_path / "search")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "search").exists()
