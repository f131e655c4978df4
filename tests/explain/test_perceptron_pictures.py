from __future__ import annotations

import numpy as np

from nearkin.explain import draw_perceptron, draw_xor


def test_xor_is_beyond_lines_and_linear_metrics_and_within_a_kernels_reach(tmp_path):
    found = draw_xor(tmp_path / "xor.png")
    assert (tmp_path / "xor.png").stat().st_size > 5000
    side = found.weights[0] + found.points @ found.weights[1:] >= 0
    assert found.wrong == int((side != (found.corner // 2 == 1)).sum())
    assert found.wrong >= len(found.points) // 5  # a line keeps three of four corners at most
    assert found.linear_share < 0.75
    assert found.kernel_share > 0.9


def test_the_perceptron_is_drawn_with_its_steps(tmp_path):
    learnt = draw_perceptron(tmp_path / "perceptron.svg")
    drawn = (tmp_path / "perceptron.svg").read_text()
    assert learnt.converged_
    assert f"{learnt.n_iter_} steps" in drawn
    for weight in learnt.path_[-1]:
        assert f"{weight:.2f}".replace("-", "−") in drawn
    other = draw_perceptron(tmp_path / "other.png", seed=0)
    assert not np.array_equal(other.path_, learnt.path_)
