from __future__ import annotations

import sys
import types

import pytest
import torch

from nearkin.display import NotebookDisplay, observer_for


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, picture: str) -> None:
        self.shown.append(picture)


@pytest.fixture
def notebook(monkeypatch) -> list[str]:
    """What a notebook would show: every picture of the one output of its cell."""
    shown: list[str] = []

    def display(picture: str, *, display_id: bool) -> Handle:
        assert display_id
        assert not shown, "one output per cell, which is replaced"
        shown.append(picture)
        return Handle(shown)

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    displays = types.ModuleType("IPython.display")
    displays.HTML, displays.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return shown


def test_one_output_is_replaced_as_the_work_goes_on(notebook):
    display = observer_for(True)
    assert isinstance(display, NotebookDisplay)
    display.stage("checking <images>")
    assert "checking &lt;images&gt;" in notebook[-1]
    display.begin(epochs=2, batches=2, epoch=0, batch=0)
    display.step(epoch=0, batch=1, images=30, loss=torch.tensor(2.5))
    display.warning("the loss does not fall")
    display.note("2 images of <b> are not read")
    display.epoch_end({"epoch": 1, "lr": 0.1, "loss": 2.5, "recall_at_1": 0.5})
    assert "<progress" in notebook[-1]
    display.end()
    assert "<progress" not in notebook[-1]
    assert "epoch  1/2  loss 2.5000  Recall@1 50.00" in notebook[-1]
    assert "warning: the loss does not fall" in notebook[-1]
    assert "note: 2 images of &lt;b&gt; are not read" in notebook[-1]


def test_many_epochs_do_not_fill_the_notebook(notebook):
    display = NotebookDisplay()
    for epoch in range(500):
        display.epoch_end({"epoch": epoch, "lr": 0.1, "loss": 1.0})
    assert notebook[-1].count("epoch ") == 40
    assert "460 lines before" in notebook[-1]


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not isinstance(observer_for(True), NotebookDisplay)
