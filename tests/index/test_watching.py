"""A watched folder: what appears or changes is added, once it is whole."""

from __future__ import annotations

import shutil
from itertools import pairwise

from indexed import write_pictures

from nearkin.index.watching import watch


def added(index, folder, *steps) -> list[tuple[int, int, int]]:
    """New, changed and known after every look that found something; between looks, steps are taken."""

    class End(Exception):
        pass

    waiting = iter(steps)

    def sleep(_seconds):
        step = next(waiting, End)
        if step is End:
            raise End
        if step is not None:
            step()

    found = []
    try:
        for one in watch(index, folder, sleep=sleep):
            found.append((one.new, one.changed, one.known))  # noqa: PERF401
    except End:
        return found


def test_new_and_changed_files_are_added_after_they_stayed_the_same(index, photos):
    late = photos / "class9" / "late.png"

    def appear():
        late.parent.mkdir()
        late.write_bytes((photos / "class0" / "0.png").read_bytes()[:100])  # half of a copy

    def complete():
        shutil.copy(photos / "class1" / "0.png", late)

    def change():
        shutil.copy(photos / "class2" / "0.png", late)

    steps = (None, appear, complete, None, change, None, None)
    assert added(index, photos, *steps) == [(0, 0, 20), (1, 0, 0), (0, 1, 0)]
    assert index.store.by_name(["class9/late.png"])["class9/late.png"].label == "class9"


def test_a_broken_file_is_skipped_until_it_changes(index, photos):
    broken = photos / "class0" / "broken.png"
    looks = []

    def mend():
        shutil.copy(photos / "class1" / "0.png", broken)

    broken.write_bytes(b"not an image")
    looks = added(index, photos, None, None, None, mend, None, None)
    assert looks == [(0, 0, 20), (1, 0, 0)]
    assert len(index) == 21


def test_a_folder_that_vanishes_takes_nothing_with_it(index, photos, tmp_path):
    away = tmp_path / "away"

    def leave():
        photos.rename(away)

    def come_back():
        away.rename(photos)
        write_pictures(photos / "new", classes=1, each=1, seed=4)

    looks = added(index, photos, None, leave, None, come_back, None, None)
    assert looks[0] == (0, 0, 20)
    assert sum(new for new, _, _ in looks) == 1
    assert len(index) == 21


def test_metadata_and_labels_of_known_files_stay(index, photos):
    index.add(photos, labels=dict.fromkeys([i.name for i in index.items()], "own"))
    added(index, photos, None, None)
    assert index.labels() == {"own": 20}
    assert all(a.id < b.id for a, b in pairwise(index.items()))
