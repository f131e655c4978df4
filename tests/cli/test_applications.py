"""The survey's applications from the command line: faces verified, people found again by other cameras."""

from __future__ import annotations

import csv
import json
from itertools import combinations

import numpy as np
import pytest
from faces import draw_passer_by, write_faces
from PIL import Image

from nearkin.model import Model

SMALL = [
    *("--set", "network.width=4", "--set", "network.embedding_dim=16", "--set", "training.epochs=6"),
    *("--set", "sampler.batch_size=20", "--set", "data.transform=resized_crop"),
]


def write_table(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


# ------------------------------------------------------------------------------------------ faces


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    return write_faces(tmp_path_factory.mktemp("orl") / "faces")


@pytest.fixture
def face_run(nearkin, faces):
    """Trained by the first test that needs it, from the command line as well."""
    run = faces.parent / "run"
    if not run.exists():
        settings = [*SMALL, "--set", "network.name=convnet", "--set", "network.size=24"]
        code, _, err = nearkin("train", faces, *settings, "-o", run)
        assert (code, err) == (0, "")
    return run


def test_faces_as_in_orl_are_verified(nearkin, faces, face_run):
    """Train on some people, then pairs of people who were never seen: scores, thresholds, a file."""
    result = json.loads((face_run / "result.json").read_text())
    new = result["networks"][0]["data"]["test"]["class_names"]
    assert len(new) == 7
    shown = [f"{person}/{number}.pgm" for person in new for number in (1, 2, 3, 4)]
    rows = [(a, b, int(a.split("/")[0] == b.split("/")[0])) for a, b in combinations(shown, 2)]
    table = write_table(faces / "pairs.csv", ("a", "b", "same"), rows)
    code, out, err = nearkin("evaluate", face_run, "--pairs", table)
    assert (code, err) == (0, "embedding 28 samples\n")
    assert f"{len(rows)} pairs" in out
    for word in (
        "roc_auc",
        "equal_error_rate",
        "false accepts, at most",
        "read off these pairs",
        "threshold",
    ):
        assert word in out
    code, told, _ = nearkin("evaluate", face_run, "--pairs", table, "--json")
    told = json.loads(told)
    kept = json.loads((face_run / "pairs.json").read_text())
    assert kept["scores"] == told["scores"]
    assert told["scores"]["roc_auc"] > 0.8

    # The points against plain counting over embeddings of the files.
    z = Model.read(face_run).embed([faces / name for name in shown])
    place = {name: number for number, name in enumerate(shown)}
    similar = np.array([float(z[place[a]] @ z[place[b]]) for a, b, _ in rows])
    same = np.array([bool(row[2]) for row in rows])
    assert [point["wanted"] for point in told["points"]] == [0.1, 0.01]
    for point in told["points"]:
        allowed = [t for t in similar if (similar[~same] >= t).mean() <= point["wanted"]]
        assert point["threshold"] == pytest.approx(min(allowed), abs=1e-5)
        assert point["false_accept_rate"] <= point["wanted"]
        expected = (similar[same] < point["threshold"] - 1e-9).mean()
        assert point["false_reject_rate"] == pytest.approx(expected, abs=1e-9)


def image_of(person, number):
    return f"Person_{person}/Person_{person}_{number:04d}.jpg"


def test_lists_of_labeled_faces_in_the_wild_are_read(nearkin, faces, face_run, tmp_path):
    wild = tmp_path / "lfw"
    for person in range(1, 9):
        (wild / f"Person_{person}").mkdir(parents=True)
        for number in range(1, 5):
            with Image.open(faces / f"s{person}" / f"{number}.pgm") as picture:
                picture.save(wild / image_of(person, number), quality=95)
    lines, rows = ["2\t3"], []
    for fold in range(2):
        people = range(1 + 4 * fold, 4 + 4 * fold)
        lines += [f"Person_{person}\t1\t2" for person in people]
        lines += [f"Person_{person}\t1\tPerson_{person + 1}\t3" for person in people]
        rows += [(image_of(person, 1), image_of(person, 2), 1) for person in people]
        rows += [(image_of(person, 1), image_of(person + 1, 3), 0) for person in people]
    (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
    table = write_table(wild / "pairs.csv", ("a", "b", "same"), rows)
    code, out, err = nearkin(
        "evaluate", face_run, "--pairs", tmp_path / "pairs.txt", "--pairs-root", wild, "--json"
    )
    assert code == 0, err
    by_list = json.loads(out)
    by_table = json.loads(nearkin("evaluate", face_run, "--pairs", table, "--json")[1])
    assert by_list["pairs"] == 12
    assert by_list["scores"]["roc_auc"] == by_table["scores"]["roc_auc"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\t3\nAnn\t1\t2\n", "has 1 pairs and its first line says 12"),
        ("1\nAnn\t1\t2\nAnn\tx\tBob\t2\n", r"line 3: a pair is NAME I J, or NAME I OTHER J"),
        ("Ann\t1\t2\nAnn\t1\t3\n", "is no list of pairs"),
        ("", "is no list of pairs"),
    ],
)
def test_wrong_lists_are_named(text, message, tmp_path):
    from nearkin.model import PairTable  # noqa: PLC0415

    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        PairTable.read(tmp_path / "pairs.txt")


def test_a_list_without_folds(tmp_path):
    from nearkin.model import PairTable  # noqa: PLC0415

    (tmp_path / "pairsDevTest.txt").write_text("1\nAnn\t1\t12\nAnn\t1\tBob\t2\n")
    table = PairTable.read(tmp_path / "pairsDevTest.txt", tmp_path / "images")
    assert table.a == ("Ann/Ann_0001.jpg", "Ann/Ann_0001.jpg")
    assert table.b == ("Ann/Ann_0012.jpg", "Bob/Bob_0002.jpg")
    assert (table.same, table.folds, table.root) == ((True, False), None, tmp_path / "images")


def test_pairs_without_answers_and_wrong_options_are_refused(nearkin, faces, face_run, tmp_path):
    table = write_table(tmp_path / "pairs.csv", ("a", "b"), [("x.png", "y.png")])
    code, _, err = nearkin("evaluate", face_run, "--pairs", table)
    assert code == 2
    assert "has no column same: without answers, nearkin verify decides its pairs" in err
    assert nearkin("evaluate", face_run, "--pairs", table, "--rerank", "whitening")[0] == 2
    assert nearkin("evaluate", face_run, "--pairs-root", tmp_path)[0] == 2


# ----------------------------------------------------------------------------------------- people


@pytest.fixture
def people(tmp_path):
    """Twelve people, three cameras, two images each; half of the people are for the test."""
    rows = []
    (tmp_path / "images").mkdir()
    for person in range(12):
        for camera in range(3):
            for number in range(2):
                name = f"images/{person}-{camera}-{number}.png"
                draw_passer_by(person, camera, number).save(tmp_path / name)
                split = "test" if person >= 6 else "train"
                rows.append(
                    (name, f"p{person:02d}", split, f"cam{camera}", int(number == 0), int(number == 1))
                )
    return tmp_path, rows


COLUMNS = ("path", "label", "split", "camera", "is_query", "is_gallery")


def naive_reidentification(z, rows, queries, gallery):
    """Rank of the first match and average precision, one query at a time; no ties."""
    first, precisions = [], []
    for q in queries:
        found = [g for g in gallery if (rows[g][1], rows[g][3]) != (rows[q][1], rows[q][3])]
        found.sort(key=lambda g: -float(z[q] @ z[g]))
        ranks = [rank for rank, g in enumerate(found, start=1) if rows[g][1] == rows[q][1]]
        first.append(ranks[0])
        precisions.append(np.mean([hit / rank for hit, rank in enumerate(ranks, start=1)]))
    return np.array(first), float(np.mean(precisions))


@pytest.mark.parametrize("roles", [True, False], ids=["queries and gallery", "each searches all others"])
def test_people_are_found_again_by_other_cameras(nearkin, people, roles):
    folder, rows = people
    columns = COLUMNS if roles else COLUMNS[:4]
    table = write_table(folder / "people.csv", columns, [row[: len(columns)] for row in rows])
    settings = [*SMALL, "--set", "network.name=convnet", "--set", "network.size=24"]
    settings += ["--set", "network.channels=3"]
    code, _, err = nearkin("train", table, *settings, "-o", folder / "run")
    assert code == 0, err  # six people are learnt quickly, and a warning may say so
    code, out, err = nearkin("evaluate", folder / "run")
    assert (code, err) == (0, "")
    assert "cmc_at_1" in out
    assert "mean_average_precision" in out
    told = json.loads(nearkin("evaluate", folder / "run", "--json")[1])

    tested = [number for number, row in enumerate(rows) if row[2] == "test"]
    queries = [n for n in tested if rows[n][4] or not roles]
    gallery = [n for n in tested if rows[n][5] or not roles]
    z = Model.read(folder / "run").embed([folder / row[0] for row in rows])
    first, mean_average_precision = naive_reidentification(z, rows, queries, gallery)
    found = told["reidentification"]
    assert found["queries"] == len(queries)
    for k in (1, 2, 4, 8):
        assert found[f"cmc_at_{k}"] == pytest.approx((first <= k).mean())
        assert told["intervals"][f"cmc_at_{k}"]["value"] == pytest.approx((first <= k).mean())
    assert found["mean_average_precision"] == pytest.approx(mean_average_precision, abs=1e-6)
    assert told["intervals"]["mean_average_precision"]["classes"] == 6


def test_an_empty_camera_is_named(people):
    from nearkin import data  # noqa: PLC0415

    folder, rows = people
    rows[4] = (*rows[4][:3], "", *rows[4][4:])
    table = write_table(folder / "people.csv", COLUMNS, rows)
    with pytest.raises(ValueError, match=r"people.csv, line 6: the camera is empty"):
        data.table(table)


def test_cameras_follow_their_samples(people):
    from nearkin import data  # noqa: PLC0415

    folder, rows = people
    read = data.table(write_table(folder / "people.csv", COLUMNS, rows))
    expected = [int(row[3][-1]) for row in rows if row[2] == "test"]
    assert read.test.cameras.tolist() == expected
    assert read.test.select([5, 0]).cameras.tolist() == [expected[5], expected[0]]
    assert read.query.cameras.tolist() == [0, 1, 2] * 6
    both = data.join(read.train, read.test)
    assert len(both.cameras) == len(rows)
    other = data.SampleSet(read.test.samples, read.test.labels, read.test.class_names)
    assert other.fingerprint() != read.test.fingerprint()
    with pytest.raises(ValueError, match=r"36 samples but cameras of shape \(2,\)"):
        data.SampleSet(read.test.samples, read.test.labels, cameras=[0, 1])
