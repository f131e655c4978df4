"""What fits into so many minutes, by arithmetic from speeds that are given here."""

from __future__ import annotations

import pytest
import torch

from nearkin.data import ImageArray, SampleSet, transforms
from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.anatomy import Anatomy
from nearkin.recipe.budget import LADDER, Amounts, Speed, fit_budget, seconds_to_read

ANATOMY = Anatomy(
    8, True, True, 32, {"a": 0.7, "b": 0.6, "c": 0.4, "d": 0.1}, {"a": 400, "b": 300, "c": 200, "d": 100}
)
SHARE = {None: 1.0, **ANATOMY.shares, "pooling": 0.01}
AMOUNTS = Amounts(train=700, validation=300, test=1000, again=1000)


def speed(stage):
    """The trunk is a forward pass, a step three of them."""
    return Speed(0.01 * (1 - SHARE[stage]), 0.03 * SHARE[stage], 0.01 * SHARE[stage], 0.002)


def seconds(stage, crops, epochs, amounts=AMOUNTS):
    """The same sum, view by view and image by image."""
    one, total = speed(stage), 0.0
    if stage is not None:
        for _ in range(max(amounts.again, amounts.train + amounts.validation)):
            total += one.read + 2 * one.trunk  # as it is and mirrored
            total += crops * (one.read + one.trunk)
        total += amounts.test * (one.read + one.trunk)
    read = one.read if stage is None else 0.0
    for _ in range(amounts.runs):
        for _ in range(epochs):
            total += (amounts.train + amounts.again) * (one.step + read)
            total += amounts.validation * (one.score + read)
        total += (amounts.train + amounts.test) * one.score
    return total


QUARTERS = [quarter / 4 for quarter in range(2, 100)]


def best(minutes, amounts=AMOUNTS, free_bytes=None):
    """The first rung of the ladder of which so many epochs fit, by trying."""
    places = {1.0: None, 0.7: "a", 0.6: "b", 0.4: "c", 0.15: "d"}
    for rung in LADDER:
        stage, crops = places[rung.share], rung.crops
        size = 2 * ANATOMY.numbers.get(stage, 0) * (1000 * (2 + crops) + 1000)
        if free_bytes is not None and crops and size > free_bytes / 2:
            continue
        fitting = [n for n in range(1, 41) if seconds(stage, crops, n, amounts) <= 0.85 * 60 * minutes]
        if fitting and fitting[-1] >= rung.fewest:
            return stage, crops, fitting[-1], rung.lr
    return None


@pytest.mark.parametrize("minutes", [2, 3, 4, 6, 8, 10, 12, 14, 20, 60])
def test_the_first_rung_that_fits_is_taken(minutes):
    found = fit_budget(minutes, ANATOMY, speed, AMOUNTS, crops=None)
    assert (found.trunk, found.crops, found.epochs, found.lr) == best(minutes)
    assert found.seconds == pytest.approx(seconds(found.trunk, found.crops, found.epochs))
    assert found.seconds <= 0.85 * 60 * minutes


def test_more_time_is_spent_on_crops_and_then_on_more_of_the_network():
    found = [fit_budget(minutes, ANATOMY, speed, AMOUNTS, crops=None) for minutes in QUARTERS]
    places = list(dict.fromkeys((one.trunk, one.crops) for one in found))
    assert places[-5:] == [("c", 2), ("c", 4), ("b", 4), ("a", 4), (None, 0)]
    assert ("c", 0) in places


def test_crops_take_no_more_than_half_of_the_disk():
    for crops in (4, 2, 0):
        free = 2 * AMOUNTS.bytes_on_disk(200, crops)
        found = fit_budget(8, ANATOMY, speed, AMOUNTS, trunk="c", crops=None, free_bytes=free)
        assert (found.trunk, found.crops) == ("c", crops)
    chosen = fit_budget(8, ANATOMY, speed, AMOUNTS, crops=None, free_bytes=free)
    assert (chosen.trunk, chosen.crops, chosen.epochs, chosen.lr) == best(8, free_bytes=free)
    assert chosen.crops == 0
    said = fit_budget(8, ANATOMY, speed, AMOUNTS, crops=4, free_bytes=1)
    assert said.crops == 4, "whoever says it may have it"


def test_little_time_is_one_epoch_of_the_head():
    found = fit_budget(0.01, ANATOMY, speed, AMOUNTS, crops=None)
    assert (found.trunk, found.crops, found.epochs) == ("pooling", 0, 1)


def test_a_stage_that_was_said_stays_and_gets_crops_where_they_fit():
    long, short = (fit_budget(m, ANATOMY, speed, AMOUNTS, trunk="b", crops=None) for m in (20, 1))
    assert (long.trunk, long.crops, long.lr) == ("b", 4, None)
    assert (short.trunk, short.crops, short.epochs) == ("b", 0, 1)
    whole = fit_budget(1, ANATOMY, speed, AMOUNTS, trunk=None, crops=None)
    assert (whole.trunk, whole.crops, whole.lr) == (None, 0, None)
    one = fit_budget(20, ANATOMY, speed, AMOUNTS, trunk="b", crops=1)
    assert (one.trunk, one.crops) == ("b", 1)


def test_runs_share_a_budget_and_the_trunk():
    ten = Amounts(train=700, validation=300, test=1000, again=1000, runs=10)
    one = fit_budget(20, ANATOMY, speed, AMOUNTS, trunk="c")
    shared = fit_budget(20, ANATOMY, speed, ten, trunk="c")
    assert shared.epochs < one.epochs
    assert seconds("c", 0, shared.epochs, ten) <= 0.85 * 20 * 60 < seconds("c", 0, shared.epochs + 1, ten)
    assert shared.seconds == pytest.approx(seconds("c", 0, shared.epochs, ten))


def test_every_stage_is_measured_once():
    asked = []

    def measured(stage):
        asked.append(stage)
        return speed(stage)

    fit_budget(0.01, ANATOMY, measured, AMOUNTS, crops=None)
    assert asked == [None, "a", "b", "c", "d", "pooling"]


def test_reading_is_measured_without_touching_the_generator():
    samples = SampleSet(ImageArray(torch.zeros(40, 3, 20, 20, dtype=torch.uint8)), [0, 1] * 20)
    transform = transforms.build("resized_crop", Preprocessing(16, (0.5,) * 3, (0.5,) * 3))
    state = torch.get_rng_state()
    assert 0 < seconds_to_read(samples, transform) < 1
    assert torch.equal(torch.get_rng_state(), state)
