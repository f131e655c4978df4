from __future__ import annotations

from collections import UserDict, namedtuple

import pytest
import torch

from nearkin.data import len_of, move, split

Tokens = namedtuple("Tokens", ["ids", "mask"])

INPUTS = {
    "tensor": torch.arange(10).view(5, 2),
    "texts": list("abcde"),
    "mapping": {"ids": torch.arange(5), "text": list("abcde")},
    "tuple": (torch.arange(5), {"deep": torch.arange(10).view(5, 2)}),
    "namedtuple": Tokens(torch.arange(5), torch.ones(5)),
    "user's mapping": UserDict(ids=torch.arange(5)),
}


def leaves(inputs):
    if isinstance(inputs, dict | UserDict):
        return [leaf for key in sorted(inputs) for leaf in leaves(inputs[key])]
    if isinstance(inputs, tuple):
        return [leaf for part in inputs for leaf in leaves(part)]
    return [inputs.tolist() if isinstance(inputs, torch.Tensor) else inputs]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_parts_together_are_the_whole(kind, chunk):
    inputs = INPUTS[kind]
    assert len_of(inputs) == 5
    parts = split(inputs, chunk)
    assert [len_of(part) for part in parts] == [min(chunk, 5 - start) for start in range(0, 5, chunk)]
    for place, whole in enumerate(leaves(inputs)):
        assert [row for part in parts for row in leaves(part)[place]] == whole


@pytest.mark.parametrize("kind", INPUTS)
def test_tensors_move_and_all_else_stays(kind):
    moved = move(INPUTS[kind], "meta")

    def check(before, after):
        if isinstance(before, torch.Tensor):
            assert after.device.type == "meta"
        elif isinstance(before, dict | UserDict):
            [check(before[key], after[key]) for key in before]
        elif isinstance(before, tuple):
            assert type(after) is type(before)
            [check(*pair) for pair in zip(before, after, strict=True)]
        else:
            assert after == before

    check(INPUTS[kind], moved)


def test_tensors_inside_a_list_move_too():
    assert [one.device.type for one in move([torch.zeros(2), torch.zeros(3)], "meta")] == ["meta", "meta"]


def test_what_is_no_batch_is_refused():
    with pytest.raises(ValueError, match="have 2 and 3 samples"):
        len_of((torch.zeros(2), torch.zeros(3)))
    with pytest.raises(TypeError, match="a int is not one entry per sample"):
        len_of({"a": 3})
    with pytest.raises(TypeError, match="without axes"):
        len_of(torch.tensor(1))
    with pytest.raises(ValueError, match="chunk=0 must be at least 1"):
        split(torch.zeros(2), 0)
