from __future__ import annotations

import torch
from PIL import Image

from nearkin.data import ImageArray, ImageFiles, SampleSet, join


def pixels(count: int, size: int = 8) -> torch.Tensor:
    return torch.randint(256, (count, 1, size, size), generator=torch.Generator().manual_seed(count)).byte()


def check_joined(both: SampleSet, first: SampleSet, second: SampleSet) -> None:
    assert len(both) == len(first) + len(second)
    assert both.class_names == (*first.class_names, *second.class_names)
    for index in range(len(both)):
        part, place = (first, index) if index < len(first) else (second, index - len(first))
        assert torch.equal(both[index][0], part[place][0])
        assert both.class_names[both[index][1]] == part.class_names[part[place][1]]
    kept = both.of_classes([1, 2])
    assert kept.class_names == both.class_names[1:3]
    assert torch.equal(kept[0][0], both[int((both.labels == 1).nonzero()[0])][0])


def test_pixels_in_memory_stay_one_array():
    first = SampleSet(ImageArray(pixels(4), list("pqrs")), list("baba"))
    second = SampleSet(ImageArray(pixels(3)), list("ccd"))
    both = join(first, second)
    assert isinstance(both.samples, ImageArray)
    check_joined(both, first, second)
    assert [both.samples.name(index) for index in (0, 3, 4)] == ["p", "s", "0"]


def test_files_below_different_roots_stay_files(tmp_path):
    sets = []
    for part in ("train", "validation"):
        (tmp_path / part / "x").mkdir(parents=True)
        for number in range(2):
            Image.effect_noise((8, 8), 50 + number).convert("RGB").save(
                tmp_path / part / "x" / f"{number}.png"
            )
        files = ImageFiles(["x/0.png", "x/1.png"], tmp_path / part)
        sets.append(SampleSet(files, [f"{part} 0", f"{part} 1"]))
    both = join(*sets)
    assert isinstance(both.samples, ImageFiles)
    assert both.samples.name(2) == "validation/x/0.png"
    check_joined(both, *sets)


def test_files_below_one_root_keep_their_names(tmp_path):
    first, second = (SampleSet(ImageFiles([f"{name}.png"], tmp_path), [name]) for name in "ab")
    assert [join(first, second).samples.name(index) for index in (0, 1)] == ["a.png", "b.png"]


def test_images_of_different_kinds():
    first, second = SampleSet(ImageArray(pixels(2)), "ab"), SampleSet(ImageArray(pixels(3, 16)), "cdc")
    check_joined(join(first, second), first, second)
