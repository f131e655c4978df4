from __future__ import annotations

import unicodedata

import pytest
import torch

from nearkin import data
from nearkin.data.glyphs import MOST_DIFFICULT, _own_folder
from nearkin.data.glyphs.distortion import distort
from nearkin.data.glyphs.typefaces import (
    MASK_SIDE,
    MINIMUM_TYPEFACES,
    SAME_SHAPE,
    TYPEFACES,
    Characters,
    distinct_shapes,
    draw_characters,
)
from nearkin.evaluation import retrieval_scores

SMALL = {"num_classes": 60, "images_per_class": 8, "size": 16}


@pytest.fixture(scope="module")
def candidates() -> Characters:
    return draw_characters()


@pytest.fixture(scope="module")
def distinct(candidates) -> Characters:
    return candidates.select(distinct_shapes(candidates))


@pytest.fixture
def drawn_once(distinct, monkeypatch) -> None:
    """Drawing every character takes seconds: let renderings of this test share the drawings."""
    monkeypatch.setattr("nearkin.data.glyphs.distinct_characters", lambda: distinct)


@pytest.fixture(scope="module")
def kept(distinct) -> set[str]:
    return set(distinct.characters)


@pytest.fixture(scope="module")
def small(glyphs_root) -> data.DataSet:
    return data.build("glyphs", glyphs_root, **SMALL)


def all_pixels(data_set: data.DataSet) -> torch.Tensor:
    return torch.cat([split.samples.pixels for split in (data_set.train, data_set.validation, data_set.test)])


def test_every_character_is_drawn_by_enough_typefaces(candidates):
    assert len(TYPEFACES) == 16
    assert len(candidates.characters) > 2000
    assert (candidates.drawn.sum(dim=1) >= MINIMUM_TYPEFACES).all()
    ink = candidates.masks.flatten(2).amax(dim=2) > 0
    assert torch.equal(ink, candidates.drawn)


def test_drawings_fill_the_same_box(candidates):
    a = candidates.masks[candidates.characters.index("a"), 0] > 0
    rows, columns = a.any(dim=1).nonzero().flatten(), a.any(dim=0).nonzero().flatten()
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    assert max(height, width) == MASK_SIDE - 8
    assert abs((rows[0] + rows[-1]) / 2 - (MASK_SIDE - 1) / 2) <= 0.5


@pytest.mark.parametrize("alike", ["oοо", "AΑА", "cсϲ", "XΧХ"])
def test_characters_that_look_the_same_are_one_class(alike, kept):
    assert len(kept & set(alike)) == 1


@pytest.mark.parametrize("different", ["ab", "OQ", "EF", "38", "←→", "ωж"])
def test_characters_that_differ_stay(different, kept):
    assert set(different) <= kept


def test_blank_and_combining_characters_are_no_class(kept):
    assert not [c for c in kept if unicodedata.category(c) == "Zs" or unicodedata.combining(c)]


def test_no_two_classes_look_the_same(distinct):
    chosen = distinct.select(torch.arange(200))
    shapes = torch.nn.functional.avg_pool2d(chosen.masks.double(), 2).flatten(2)
    shapes = torch.nn.functional.normalize(shapes, dim=2)
    both = (chosen.drawn[:, None] & chosen.drawn[None]).double()
    cosine = (torch.einsum("ifd,jfd->ijf", shapes, shapes) * both).sum(2) / both.sum(2)
    cosine.fill_diagonal_(0)
    assert cosine.max() <= SAME_SHAPE + 1e-6


def test_splits_share_no_class(small):
    names = [set(split.class_names) for split in (small.train, small.validation, small.test)]
    assert sum(map(len, names)) == len(set.union(*names)) == 60
    assert [len(n) for n in names] == [27, 3, 30]
    assert len(small.train) == 27 * 8


def test_pictures_of_a_class_come_from_different_typefaces(small):
    names = [small.train.samples.name(i) for i in range(8)]
    assert len(set(names)) == 8
    assert len({name.split(" in ")[0] for name in names}) == 1


def test_the_same_seed_gives_the_same_pictures(small, drawn_once, tmp_path):
    again = data.build("glyphs", tmp_path, **SMALL)
    other = data.build("glyphs", tmp_path, seed=1, **SMALL)
    assert torch.equal(all_pixels(small), all_pixels(again))
    assert small.train.class_names == again.train.class_names
    assert small.train.class_names != other.train.class_names


def test_the_cache_is_read_and_leaves_nothing_else(small, glyphs_root, monkeypatch):
    monkeypatch.setattr("nearkin.data.glyphs.distinct_characters", lambda: pytest.fail("drawn again"))
    again = data.build("glyphs", glyphs_root, **SMALL)
    assert torch.equal(all_pixels(small), all_pixels(again))
    assert not list(glyphs_root.glob(".*"))


@pytest.mark.parametrize("damage", ["truncated", "one byte", "other file"])
def test_a_damaged_cache_is_made_anew(damage, small, drawn_once, tmp_path):
    data.build("glyphs", tmp_path, **SMALL)
    (file,) = tmp_path.iterdir()
    contents = bytearray(file.read_bytes())
    if damage == "truncated":
        contents = contents[: len(contents) // 2]
    elif damage == "one byte":
        contents[-1] ^= 255
    else:
        contents = bytearray(b"not a tensor in sight")
    file.write_bytes(contents)
    with pytest.warns(UserWarning, match="is damaged"):
        again = data.build("glyphs", tmp_path, **SMALL)
    assert torch.equal(all_pixels(small), all_pixels(again))


def test_difficulty_makes_pictures_of_a_class_less_alike(candidates):
    masks = candidates.masks[candidates.characters.index("R"), :1].expand(64, -1, -1)
    likeness = []
    for difficulty in (0.0, 0.5, 1.0, 2.0):
        generator = torch.Generator().manual_seed(3)
        pictures = distort(masks, masks, size=32, difficulty=difficulty, generator=generator).float()
        centred = pictures.flatten(1) - pictures.flatten(1).mean(dim=1, keepdim=True)
        centred = torch.nn.functional.normalize(centred, dim=1)
        likeness.append((centred @ centred.T).abs().mean().item())
    assert likeness[0] == pytest.approx(1, abs=1e-4)
    assert likeness == sorted(likeness, reverse=True)
    assert likeness[3] < 0.5 * likeness[1]


def test_clean_pictures_show_the_character(candidates):
    mask = candidates.masks[candidates.characters.index("T"), :1]
    clean = distort(mask, mask, size=48, difficulty=0.0, generator=torch.Generator().manual_seed(0))
    assert (clean[0, 0].float() - mask[0].float()).abs().mean() < 2


def test_raw_pixels_find_less_than_half_of_the_positives(glyphs_root):
    test = data.build("glyphs", glyphs_root).test
    scores = retrieval_scores(test.samples.pixels.flatten(1).float(), test.labels, recall_at=(1,))
    assert 0.1 < scores.recall_at[1] < 0.45


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"difficulty": -1}, "difficulty=-1"),
        ({"images_per_class": 1}, "images_per_class=1"),
        ({"size": 4}, "size=4"),
        ({"num_classes": 2}, "num_classes=2"),
        ({"num_classes": 10**6}, "num_classes=1000000 but there are"),
        ({"dificulty": 1}, "did you mean difficulty"),
    ],
)
def test_wrong_values_are_named(keywords, message, drawn_once, tmp_path):
    with pytest.raises(ValueError, match=message):
        data.build("glyphs", tmp_path, **keywords)


@pytest.mark.parametrize("difficulty", [float("nan"), float("inf"), 1e308, -1, 100.5])
def test_a_difficulty_out_of_range_is_refused(difficulty, tmp_path):
    with pytest.raises(ValueError, match="difficulty=.* must lie between 0 and 100"):
        data.build("glyphs", root=tmp_path, difficulty=difficulty)


def test_a_negative_seed_is_refused(tmp_path):
    with pytest.raises(ValueError, match="seed=-1 must be at least 0"):
        data.build("glyphs", root=tmp_path, seed=-1)


def test_nothing_is_drawn_into_a_folder_of_other_files(tmp_path):
    (tmp_path / "wren").mkdir()
    with pytest.raises(ValueError, match=r'holds other things \(wren\): .* choose name = "folder"'):
        data.build("glyphs", root=tmp_path, num_classes=8, images_per_class=2, size=8)
    assert [entry.name for entry in tmp_path.iterdir()] == ["wren"]
    own = tmp_path / "own"
    assert _own_folder(own) == own
    own.mkdir()
    (own / "glyphs-v0-of-another-seed.safetensors").touch()
    assert _own_folder(own) == own
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file"):
        data.build("glyphs", root=tmp_path / "file")


def test_the_greatest_difficulty_can_be_drawn():
    masks = torch.randint(256, (4, 48, 48), generator=torch.Generator().manual_seed(0)).byte()
    generator = torch.Generator().manual_seed(1)
    pictures = distort(masks, masks, size=8, difficulty=MOST_DIFFICULT, generator=generator)
    assert pictures.shape == (4, 1, 8, 8)
