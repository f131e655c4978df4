from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nearkin.training.schedules import Constant, Cosine, MultiStep, Schedule, Step


def test_the_shapes_of_the_schedules():
    cosine = Schedule(Cosine(), warmup=2)
    assert cosine(1, 10) == 0.5
    assert cosine(2, 10) == 1
    assert cosine(6, 10) == pytest.approx(0.5)
    assert cosine(10, 10) == pytest.approx(0)
    step = Schedule(Step(every=5, factor=0.1))
    assert [step(e, 100) for e in (0, 4.99, 5, 10)] == pytest.approx([1, 1, 0.1, 0.01])
    falls = Schedule(MultiStep((2, 4), factor=0.5))
    assert [falls(e, 6) for e in (1.9, 2, 3.9, 4)] == [1, 0.5, 0.5, 0.25]
    assert Schedule(Constant())(9, 10) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Step(factor=0), "factor=0 must be above 0"),
        (lambda: Step(every=0), "every=0 must be at least 1"),
        (lambda: MultiStep(()), "must be rising epochs"),
        (lambda: MultiStep((4, 2)), r"milestones=\[4, 2\] must be rising"),
    ],
)
def test_values_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_scheduler_counts_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = Schedule(Cosine(), warmup=1).scheduler(optimizer, epochs=4, steps=10)
    rates = []
    for _ in range(40):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == rates[1] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(1)
    assert rates[25] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.5)))
    assert rates[11:] == sorted(rates[11:], reverse=True)


def test_a_training_of_one_step_moves():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    Schedule(Cosine(), warmup=0.5).scheduler(optimizer, epochs=1, steps=1)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_defaults_and_limits():
    assert [Step()(epoch, 100, 0) for epoch in (9.99, 10, 20)] == pytest.approx([1, 0.1, 0.01])
    assert [MultiStep((1,))(epoch, 9, 0) for epoch in (0.99, 1)] == [1, 0.1]
    assert Step(every=1, factor=1)(5, 9, 0) == 1
    for factor in (-0.1, 1.01):
        with pytest.raises(ValueError, match=f"factor={factor} must be above 0 and at most 1"):
            MultiStep((2,), factor=factor)
    for milestones in ((0, 2), (2, 2)):
        with pytest.raises(ValueError, match="must be rising epochs"):
            MultiStep(milestones)
    assert Schedule(Constant()).warmup == 0


def test_a_cosine_does_not_rise_again():
    assert Cosine()(12, epochs=10, warmup=0) == pytest.approx(0)
    assert Cosine()(2.0, epochs=2, warmup=2.0) == 1  # all of it is warm-up
    for epoch in (1, 3.5, 7):
        expected = (1 + math.cos(math.pi * (epoch - 1) / 9)) / 2
        assert Cosine()(epoch, epochs=10, warmup=1) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0, 2])
def test_every_step_has_the_rate_of_its_moment(warmup):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3.0)
    schedule = Schedule(Cosine(), warmup=warmup)
    scheduler = schedule.scheduler(optimizer, epochs=5, steps=4)
    for step in range(20):
        moment = (1 if warmup and step == 0 else step) / 4
        share = (moment - warmup) / (5 - warmup)
        expected = moment / 2 if moment < warmup else (1 + math.cos(math.pi * share)) / 2
        assert optimizer.param_groups[0]["lr"] == pytest.approx(3 * expected)
        optimizer.step()
        scheduler.step()
