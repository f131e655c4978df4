from __future__ import annotations

import pytest

from nearkin import data
from nearkin.language import spoken_class_names


@pytest.mark.parametrize(
    ("data_set", "written", "spoken"),
    [
        ("cub200", "001.Black_footed_Albatross", "Black footed Albatross"),
        ("cub200", "093.Clark_Nutcracker", "Clark Nutcracker"),
        ("cars196", "001 AM General Hummer SUV 2000", "AM General Hummer SUV 2000"),
        ("cars196", "Ram C-V Cargo Van Minivan 2012", "Ram C-V Cargo Van Minivan 2012"),
        ("folder", "12_golden_retriever", "golden retriever"),
        ("folder", "golden-retriever", "golden-retriever"),
        ("csv", " 7 - up  bottle ", "7 - up bottle"),
        ("glyphs", "U+0041 A latin capital letter a", "latin capital letter a"),
        ("a data set of my own", "3. red_wine", "red wine"),
    ],
)
def test_names_as_a_person_says_them(data_set, written, spoken):
    assert spoken_class_names(data_set, [written]) == [spoken]


def test_a_number_that_only_some_names_begin_with_belongs_to_them():
    assert spoken_class_names("folder", ["747 Jumbo", "Concorde"]) == ["747 Jumbo", "Concorde"]


@pytest.mark.parametrize(
    ("data_set", "written", "message"),
    [
        ("sop", "00001", "sop numbers its classes and has no names for them: use pseudo-labels"),
        ("inshop", "id_00000001", "inshop numbers its classes"),
        ("folder", "00017", "class '00017' of folder has no name that could be spoken"),
    ],
)
def test_classes_without_names_are_said_to_have_none(data_set, written, message):
    with pytest.raises(ValueError, match=message):
        spoken_class_names(data_set, [written])


def test_every_bird_has_a_name_of_its_own(shared):
    birds = data.build("cub200", shared / "datasets")
    names = [*birds.train.class_names, *birds.test.class_names]
    spoken = spoken_class_names("cub200", names)
    assert len(set(spoken)) == 200
    assert not any(character.isdigit() or character in "._" for name in spoken for character in name)


def test_every_glyph_has_a_name_of_its_own(glyphs_root):
    glyphs = data.build("glyphs", glyphs_root, num_classes=60, images_per_class=8, size=16)
    spoken = spoken_class_names("glyphs", glyphs.train.class_names)
    assert len(set(spoken)) == glyphs.train.num_classes
    assert not any("u+" in name.lower() for name in spoken)
