from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.tournament.report.charts import Curve, Curves, axis_for, panel_chart, snug_axis

numbers = st.floats(-1e4, 1e4, allow_nan=False).map(lambda value: round(value, 3))


@given(st.lists(numbers, min_size=1))
def test_every_value_is_on_the_axis_and_ticks_are_what_they_say(values):
    axis = axis_for(values)
    assert all(-0.01 <= axis.place(value) <= 100.01 for value in values)
    assert 2 <= len(axis.ticks) <= 8
    for tick in axis.ticks:
        assert tick.place == pytest.approx(axis.place(float(tick.text)), abs=0.01)
    assert [tick.place for tick in axis.ticks] == sorted(tick.place for tick in axis.ticks)


@given(st.lists(numbers, min_size=1))
def test_a_snug_axis_holds_its_values_and_its_ticks(values):
    axis = snug_axis(values)
    assert all(0 <= axis.place(value) <= 100 for value in values)
    assert all(0 <= tick.place <= 100 for tick in axis.ticks)


def test_bars_begin_at_the_floor():
    axis = axis_for([3.0, 8.0], floor=0)
    assert axis.place(0) == 0
    assert axis.ticks[0].text == "0"


def test_panels_put_high_values_high_and_share_their_axes():
    low = Curves("low", "#low", [Curve([(0, 10.0), (5, 20.0)], mark=(5, 20.0))])
    high = Curves("high", "#high", [Curve([(0, 10.0), (5, 90.0)])])
    chart = panel_chart("c", [high, low], title="", description="", x_unit="epoch", y_unit="%")
    ends = {panel.label: panel.lines[0].split()[-1].split(",") for panel in chart.panels}
    assert ends["high"][0] == ends["low"][0] == "100"
    assert float(ends["high"][1]) < float(ends["low"][1])
    assert chart.panels[1].marks == [(100.0, float(ends["low"][1]))]
    assert chart.background == [panel.lines[0] for panel in chart.panels]
    assert [tick.text for tick in chart.x_ticks] == ["0", "5"]


def test_embedding_sizes_stand_evenly_apart():
    sizes = Curves("a", "#", [Curve([(64.0, 1.0), (128.0, 2.0), (1024.0, 3.0)])])
    places = {64.0: 0.0, 128.0: 50.0, 1024.0: 100.0}
    chart = panel_chart("c", [sizes], title="", description="", x_unit="", y_unit="", x_places=places)
    assert [point.split(",")[0] for point in chart.panels[0].lines[0].split()] == ["0", "50", "100"]
    assert [tick.text for tick in chart.x_ticks] == ["64", "128", "1024"]
