"""Pairs instead of classes: what a table says, what follows from it, and splits that share no sample."""

from __future__ import annotations

import csv
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin import data
from nearkin.data import ImageFiles, KnownPairs, Texts, join
from nearkin.data.pair_tables import lists_pairs


def write(path, rows, columns=("a", "b", "same")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def chain(groups=20):
    """Groups of three samples, each matched with the next, and different from those of the next group."""
    rows = []
    for group in range(groups):
        names = [f"{group}/{number}.png" for number in range(3)]
        rows += [(names[0], names[1], 1), (names[1], names[2], 1)]
        if group:
            rows.append((names[0], f"{group - 1}/2.png", 0))
    return rows


def naive(known, rows):
    """By loops over all pairs: the answers, and what follows from them where matches are transitive."""
    count = len(known.groups)
    same = {(i, i) for i in range(count)}
    listed = [(*pair, bool(answer)) for pair, answer in zip(known.pairs.tolist(), known.same, strict=True)]
    same |= {pair for i, j, answer in listed if answer for pair in ((i, j), (j, i))}
    while known.transitive:
        more = {(i, k) for i, j in same for j2, k in same if j == j2} - same
        if not more:
            break
        same |= more
    differ = {pair for i, j, answer in listed if not answer for pair in ((i, j), (j, i))}
    if known.transitive:
        differ = {
            (i, j)
            for a, b in differ
            for i in range(count)
            for j in range(count)
            if (i, a) in same and (j, b) in same
        }
    found = torch.zeros(len(rows), len(rows), dtype=torch.int8)
    for x, i in enumerate(rows):
        for y, j in enumerate(rows):
            found[x, y] = (
                1 if (i, j) in same else -1 if (i, j) in differ or known.others == "different" else 0
            )
    return found


@st.composite
def some_pairs(draw):
    count = draw(st.integers(3, 7))
    listed = draw(st.lists(st.sampled_from(list(combinations(range(count), 2))), min_size=1, unique=True))
    truth = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    same = [truth[i] == truth[j] for i, j in listed]
    others = draw(st.sampled_from(["unknown", "different"]))
    return KnownPairs.of(count, listed, same, others=others, transitive=draw(st.booleans()))


@given(some_pairs(), st.data())
def test_what_is_known_of_a_batch_is_what_loops_find(known, draw):
    count = len(known.groups)
    rows = draw.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8))
    assert torch.equal(known.among(torch.tensor(rows)), naive(known, rows))


@given(some_pairs(), st.data())
def test_of_some_samples_what_is_listed_among_them_is_kept(known, draw):
    count = len(known.groups)
    rows = draw.draw(st.permutations(range(count)))[: draw.draw(st.integers(1, count))]
    part = known.select(torch.tensor(rows))
    kept = {
        (*(rows[i] for i in pair), bool(s)) for pair, s in zip(part.pairs.tolist(), part.same, strict=True)
    }
    listed = [(*pair, bool(s)) for pair, s in zip(known.pairs.tolist(), known.same, strict=True)]
    assert kept == {(i, j, s) for i, j, s in listed if i in rows and j in rows}
    same_group = known.groups[rows][:, None] == known.groups[rows]
    assert torch.equal(part.groups[:, None] == part.groups, same_group)


def test_all_that_is_not_said_to_match_is_drawn_from_where_it_differs():
    known = KnownPairs.of(6, [(0, 1), (2, 3), (4, 5)], [True] * 3, others="different")
    pairs, same = known.scored()
    assert torch.equal(pairs[:3], known.pairs)
    assert len(same) == 15
    assert same.sum() == 3
    assert len({tuple(pair) for pair in pairs.tolist()}) == 15
    assert all(known.groups[i] != known.groups[j] for i, j in pairs[3:].tolist())
    again, _ = KnownPairs.of(6, [(0, 1), (2, 3), (4, 5)], [True] * 3, others="different").scored()
    assert torch.equal(pairs, again)
    unknown = KnownPairs.of(6, [(0, 1), (1, 2)], [True, False])
    assert torch.equal(unknown.scored()[0], unknown.pairs)


def test_a_table_of_pairs_is_recognised_and_read(tmp_path):
    path = write(tmp_path / "pairs.csv", chain())
    assert lists_pairs(path)
    found = data.as_data_set(path)
    assert found.name == "pairs"
    assert isinstance(found.train.samples, ImageFiles)
    assert found.train.samples.path(0).parent.parent == tmp_path
    splits = [found.train, found.validation, found.test]
    names = [{one.samples.name(row) for row in range(len(one))} for one in splits]
    assert sum(map(len, names)) == len(set().union(*names)) == 60
    assert "59 pairs of 60 samples: 40 the same, 19 different; other pairs are unknown" in found.notes[0]


@pytest.mark.parametrize("seed", range(5))
def test_splits_share_no_sample_and_a_sparse_list_keeps_most_of_its_pairs(tmp_path, seed):
    path = write(tmp_path / "pairs.csv", chain(60))
    found = data.build("pairs", path, seed=seed)
    splits = [found.train, found.validation, found.test]
    assert sum(len(one.pairs.same) for one in splits) >= 179 - 12
    for split, share in zip(splits, (0.5, 0.2, 0.3), strict=True):
        assert abs(len(split) / 180 - share) < 0.05
        assert torch.equal(split.labels, split.pairs.groups)
        assert split.labels.bincount().min() == 3  # groups stay whole
    assert "lie across the splits" in found.notes[1]


def test_lines_may_say_the_split_of_their_pair(tmp_path):
    rows = [
        (a, b, same, ("train", "validation", "test")[int(a.split("/")[0]) // 7]) for a, b, same in chain()
    ]
    rows = [row for row in rows if int(row[0].split("/")[0]) // 7 == int(row[1].split("/")[0]) // 7]
    found = data.build("pairs", write(tmp_path / "p.csv", rows, ("a", "b", "same", "split")))
    assert [len(one) for one in (found.train, found.validation, found.test)] == [21, 21, 18]
    rows.append(("0/0.png", "19/0.png", 0, "train"))
    with pytest.raises(ValueError, match=r"19/0.png is in test .* and in train .* one split only"):
        data.build("pairs", write(tmp_path / "p.csv", rows, ("a", "b", "same", "split")))


def test_matches_alone_need_to_be_told_what_the_others_are(tmp_path):
    matches = [(a, b) for a, b, same in chain() if same]
    path = write(tmp_path / "matches.csv", matches, ("a", "b"))
    with pytest.raises(ValueError, match=r"matches.csv: no pair is different.* data.others=different"):
        data.build("pairs", path)
    with pytest.raises(ValueError, match="all others are unknown"):
        data.build("pairs", path, others="unknown")
    found = data.build("pairs", path, others="different")
    assert found.train.pairs.are_classes
    assert found.train.num_classes == 10
    assert found.train.labels.bincount().tolist() == [3] * 10


def test_a_triplet_is_two_pairs(tmp_path):
    rows = [(f"{n}/0.png", f"{n}/1.png", f"{(n + 1) % 30}/0.png") for n in range(30)]
    found = data.build("pairs", write(tmp_path / "t.csv", rows, ("anchor", "positive", "negative")))
    assert "60 pairs of 60 samples: 30 the same, 30 different" in found.notes[0]
    known = found.train.pairs
    for (i, j), same in zip(known.pairs.tolist(), known.same.tolist(), strict=True):
        names = [found.train.samples.name(row) for row in (i, j)]
        assert (names[0].split("/")[0] == names[1].split("/")[0]) == same


def test_what_is_no_image_is_a_text(tmp_path):
    rows = [(f"a wren {n}", f"wrens {n}", 1) for n in range(20)] + [
        (f"a wren {n}", f"wrens {n - 1}", 0) for n in range(1, 20)
    ]
    found = data.build("pairs", write(tmp_path / "texts.csv", rows))
    assert isinstance(found.train.samples, Texts)


ODD = {
    "twice": (
        [("1", "2", 1), ("2", "3", 0), ("2", "1", 0)],
        "2 and 1 are said to be the same in line 2 and different in line 4",
    ),
    "itself": ([("1", "1", 1)], "a pair needs two samples, and both are 1 in line 2"),
    "through others": (
        [("1", "2", 1), ("2", "3", 1), ("3", "1", 0)],
        "3 and 1 are said to differ, but other pairs join them",
    ),
    "no answer": ([("1", "2", "maybe")], "line 2: same is 'maybe', and must be 1 or 0"),
    "empty field": ([("1", "", 1)], "line 2: the fields a, b must all be there"),
    "too many fields": ([("1", "2", 1, 4)], "line 2: the fields a, b must all be there, and no more"),
    "no matches": ([("1", "2", 0)], "no pair is the same"),
    "no negatives": ([("1", "2", 1)], "no pair is different, and nothing can be learnt from matches alone"),
    "no lines": ([], "no lines below its first"),
    "few": ([("1", "2", 1), ("3", "4", 1), ("1", "3", 0)], "pairs of the .* part are .*give more pairs"),
}


@pytest.mark.parametrize(("rows", "message"), ODD.values(), ids=ODD)
def test_an_odd_table_is_one_clear_sentence(rows, message, tmp_path):
    path = write(tmp_path / "odd.csv", rows)
    with pytest.raises(ValueError, match=message) as error:
        data.build("pairs", path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_columns_and_files_that_are_missing_are_named(tmp_path):
    path = write(tmp_path / "one.csv", [("x",)], ("a",))
    with pytest.raises(
        ValueError, match=r"no column b in its first line: pairs have the columns a, b and same"
    ):
        data.as_data_set(path)
    with pytest.raises(FileNotFoundError, match="there is no file .*none.csv"):
        data.build("pairs", tmp_path / "none.csv")
    with pytest.raises(ValueError, match="pairs needs root"):
        data.build("pairs")
    assert not lists_pairs(tmp_path / "none.csv")


def test_matches_that_are_not_transitive_may_differ_among_themselves(tmp_path):
    rows = [*chain(), ("0/0.png", "0/2.png", 0)]
    found = data.build("pairs", write(tmp_path / "p.csv", rows), transitive=False)
    assert not found.train.pairs.are_classes


def test_from_python_with_positions_and_any_samples():
    vectors = np.eye(60, dtype=np.float32)
    matches = [(n, n + 1) for n in range(0, 60, 2)]
    differ = [(n, n + 2) for n in range(0, 58, 2)]
    found = data.pairs(vectors, matches + differ, [True] * 30 + [False] * 29)
    assert found.train.samples[0].shape == (60,)
    triplets = [(n, n + 1, (n + 2) % 60) for n in range(0, 60, 2)]
    assert data.pairs(vectors, triplets).train.pairs.same.float().mean() < 0.7
    for wrong, message in (
        ({"pairs": [(0, 60)]}, "position 60 is not one of 60 samples"),
        ({"pairs": [0, 1]}, r"rows of two positions, or of three, not \(2,\)"),
        ({"pairs": triplets, "same": [True]}, "give no same="),
        ({"pairs": matches, "same": [True]}, "30 pairs but 1 answers"),
        ({"pairs": matches, "others": "maybe"}, "others='maybe' must be one of: unknown, different"),
        ({"pairs": matches, "others": "different", "test_fraction": 0.9}, "leave nothing to learn"),
    ):
        with pytest.raises(ValueError, match=message):
            data.pairs(vectors, **wrong)


def test_one_group_of_everything_cannot_be_split():
    with pytest.raises(ValueError, match="samples are joined by matches"):
        data.pairs(np.eye(9, dtype=np.float32), [(n, n + 1) for n in range(8)], others="different")


def test_pairs_survive_joining_and_go_where_labels_are_taken_away(tmp_path):
    found = data.as_data_set(write(tmp_path / "pairs.csv", chain()))
    both = join(found.train, found.validation)
    assert torch.equal(both.labels, both.pairs.groups)
    assert len(both.pairs.same) == len(found.train.pairs.same) + len(found.validation.pairs.same)
    rows = torch.arange(len(both))
    expected = torch.block_diag(
        found.train.pairs.among(rows[: len(found.train)]).float(),
        found.validation.pairs.among(rows[: len(found.validation)]).float(),
    )
    assert torch.equal(both.pairs.among(rows).float(), expected)
    assert found.train.without_labels([0]).pairs is None


def test_other_answers_are_other_data():
    vectors = np.eye(60, dtype=np.float32)
    listed = [(n, n + 1) for n in range(0, 60, 2)] + [(n, n + 2) for n in range(0, 58, 2)]
    one, other = (
        data.pairs(vectors, listed, [True] * 30 + [False] * 29, others=others).train
        for others in ("unknown", "different")
    )
    assert one.fingerprint() != other.fingerprint()
