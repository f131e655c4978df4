"""``nearkin verify``: two samples in a line, and a table of pairs with its scores."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from pathlib import Path

import pytest
import torch

from nearkin import data, networks
from nearkin.evaluation import verification_scores
from nearkin.model import Model, PairTable, verify_pairs
from nearkin.networks import Embedder


@pytest.fixture(scope="module")
def files(photos) -> list[Path]:
    return sorted(photos.rglob("*.*"))


@pytest.fixture(scope="module")
def model(photos, files, tmp_path_factory) -> Path:
    """A network that was not trained, with a threshold."""
    network = networks.build("convnet", channels=3, size=16, width=4, embedding_dim=8)
    seen = data.transforms.build("resized_crop", preprocessing=network.preprocessing, train=False)
    made = Model([Embedder(network.eval(), seen, seen, transform_spec={"name": "resized_crop"})])
    made.choose_threshold(files, [file.parent.name for file in files], false_accept_rate=0.2)
    return made.save(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def undecided(model, tmp_path_factory) -> Path:
    made = Model.read(model)
    made.threshold = None
    return made.save(tmp_path_factory.mktemp("models") / "undecided")


def write_pairs(path: Path, rows: list[tuple], columns: tuple = ("a", "b", "same")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def all_pairs(files: list[Path]) -> list[tuple[Path, Path, int]]:
    return [(a, b, int(a.parent == b.parent)) for a, b in combinations(files[::2], 2)]


def test_two_samples_are_one_line(nearkin, model, files):
    decision = Model.read(model).same(files[0], files[-1])
    code, out, err = nearkin("verify", model, files[0], files[-1])
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert out.startswith(str(decision))
    assert "% on new classes)" in out
    assert "probab" not in out


def test_the_exit_code_tells_on_request(nearkin, model, undecided, files):
    same = nearkin("verify", model, files[0], files[0], "--exit-code")
    assert same[0] == 0
    assert same[1].startswith("same: similarity 1.0000")
    loaded = Model.read(model)
    other = next(file for file in files if not loaded.same(files[0], file))
    assert nearkin("verify", model, files[0], other)[0] == 0
    assert nearkin("verify", model, files[0], other, "--exit-code")[0] == 1
    code, out, err = nearkin("verify", undecided, files[0], other, "--exit-code")
    assert code == 2
    assert "no threshold" in out + err


def test_json_has_everything(nearkin, model, files):
    _, out, _ = nearkin("verify", model, files[0], files[1], "--json")
    told = json.loads(out)
    assert told["same"] in (True, False)
    assert told["threshold"]["classes"] == 12
    assert -1 <= told["similarity"] <= 1


def test_a_model_without_a_threshold_tells_the_similarity(nearkin, undecided, files):
    code, out, _ = nearkin("verify", undecided, files[0], files[1])
    assert code == 0
    assert "similarity" in out
    assert "the model has no threshold" in out


def test_a_table_of_pairs_with_answers_is_scored(nearkin, model, files, tmp_path):
    pairs = all_pairs(files)
    table = write_pairs(tmp_path / "pairs.csv", pairs)
    report = verify_pairs(Model.read(model), table)
    vectors = Model.read(model).embed(files)
    place = {file: i for i, file in enumerate(files)}
    first, second = (vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
    same = torch.tensor([bool(pair[2]) for pair in pairs])
    expected = verification_scores(first, second, same)
    assert report.scores.roc_auc == pytest.approx(expected.roc_auc, abs=1e-6)
    assert report.scores.equal_error_rate == pytest.approx(expected.equal_error_rate, abs=1e-6)
    accepted = (first * second).sum(dim=1) >= report.threshold.similarity
    rates = report.intervals
    assert rates["false_accept_rate"].value == pytest.approx(float(accepted[~same].double().mean()))
    assert rates["false_reject_rate"].value == pytest.approx(float((~accepted)[same].double().mean()))
    assert rates["accuracy_at_threshold"].value == pytest.approx(float((accepted == same).double().mean()))
    for name in ("false_accept_rate", "false_reject_rate", "accuracy_at_threshold", "roc_auc"):
        assert rates[name].low <= rates[name].value <= rates[name].high
        assert rates[name].classes == 12
    code, out, _ = nearkin("verify", model, table, "-o", tmp_path / "out.csv")
    assert code == 0
    for word in (f"{len(pairs)} pairs", "false_accept_rate", "roc_auc", "equal_error_rate", "accuracy"):
        assert word in out
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["decision"] for row in rows] == [str(int(one)) for one in report.same]
    assert [float(row["similarity"]) for row in rows] == pytest.approx(report.similarity.tolist(), abs=1e-6)
    _, out, _ = nearkin("verify", model, table, "--json")
    assert json.loads(out)["scores"]["roc_auc"] == pytest.approx(report.scores.roc_auc)


def test_a_table_without_answers_is_decided(nearkin, model, undecided, photos, files, tmp_path):
    names = [str(file.relative_to(photos)) for file in files[:4]]
    table = write_pairs(photos / "pairs.csv", [tuple(names[:2]), tuple(names[2:])], ("a", "b"))
    try:
        report = verify_pairs(Model.read(model), table)  # paths are relative to the table
        assert len(report.same) == 2
        assert report.scores is None
        code, out, _ = nearkin("verify", undecided, table, "-o", tmp_path / "out.csv")
        assert code == 0
        assert "2 pairs: the model has no threshold" in out
        assert (tmp_path / "out.csv").read_text().startswith("a,b,similarity\n")
    finally:
        table.unlink()


def test_few_pairs_have_scores_without_intervals_or_none(model, files, tmp_path):
    few = write_pairs(tmp_path / "few.csv", [(files[0], files[1], "yes"), (files[0], files[-1], "no")])
    report = verify_pairs(Model.read(model), few)
    assert report.scores is None
    assert report.note == "1 true and 1 false pairs are too few to score"
    a, b, c, d = files[0], files[1], files[-1], files[-2]
    rows = [(a, b, 1), (c, d, 1), (a, c, 0), (b, d, 0)]
    report = verify_pairs(Model.read(model), write_pairs(tmp_path / "some.csv", rows))
    assert report.scores is not None
    assert report.note.startswith("no intervals: 2 classes are too few")


def test_samples_joined_by_true_pairs_are_one_class(model, files, tmp_path):
    a, b, c, other, more = *files[:3], files[-1], files[-2]
    rows = [(a, b, 1), (b, c, 1), (other, more, 1), (a, other, 0), (a, c, 0)]
    with pytest.raises(ValueError, match="are said to differ, but other pairs join them"):
        verify_pairs(Model.read(model), write_pairs(tmp_path / "wrong.csv", rows))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\nx,y\n", "no column b in its first line"),
        ("", "no column a and no column b"),
        ("a,b\n", "no lines below its first"),
        ("a,b\nx,\n", "line 2: a pair needs both a and b"),
        ("a,b,same\nx,y,perhaps\n", "line 2: same is 'perhaps', and must be 1 or 0"),
        ("a,b\nx.png,y.png\n", "there is no file"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(nearkin, model, tmp_path, text, message):
    (tmp_path / "pairs.csv").write_text(text)
    code, _, err = nearkin("verify", model, tmp_path / "pairs.csv")
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_mistakes_are_one_line(nearkin, model, files, tmp_path):
    for arguments, message in [
        ((model, files[0]), "is to be compared with what?"),
        ((model, files[0], "nowhere.png"), "there is no file nowhere.png"),
        ((model, tmp_path / "none.csv"), "there is no file"),
        ((tmp_path / "nothing", files[0], files[1]), "nothing does not exist"),
        ((model, files[0], files[1], "-o", "x.csv"), "--output is for a table of pairs"),
        ((model, files[0], files[1], "--fold", "1"), "has no fold 1"),
    ]:
        code, _, err = nearkin("verify", *arguments)
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1


def test_a_table_reads_what_spreadsheets_write(tmp_path):
    (tmp_path / "t.csv").write_bytes("\ufeffa,b,same,note\r\nx,y,TRUE,hm\r\n".encode())
    table = PairTable.read(tmp_path / "t.csv")
    assert (table.a, table.b, table.same) == (("x",), ("y",), (True,))
