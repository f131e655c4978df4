"""Figures come from raw samples, and what README and the documentation quote is what the results say."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import sys
from dataclasses import replace

import measured
import numpy as np
import pytest
from measured import BENCHMARKS, figures, row

from nearkin import losses
from test_documents import ROOT

import quote  # isort: skip - beside figures

SAMPLES = {
    "floor": [[1.0, 2.0, 9.0], [2.0, 2.0, 2.0], [4.0, 1.0, 2.5]],
    "ours": [[3.0, 4.0, 50.0], [5.0, 5.0, 6.0], [3.0, 3.5, 4.0]],
    "PML": [[8.0, 9.0, 10.0], [20.0, 10.0, 30.0], [7.0, 7.0, 7.0]],
}


def two_losses() -> figures.Result:
    other = {side: [[2 * x for x in taken] for taken in all_] for side, all_ in SAMPLES.items()}
    return measured.result(
        "losses_b180", row("triplet", **SAMPLES), row("margin", **{**other, "PML": SAMPLES["PML"]})
    )


def test_a_ratio_is_of_the_medians_of_each_process():
    figure = two_losses().ratio("triplet", "PML", "ours")
    expected = [
        statistics.median(theirs) / statistics.median(ours)
        for theirs, ours in zip(SAMPLES["PML"], SAMPLES["ours"], strict=True)
    ]
    assert (figure.value, figure.low, figure.high) == (
        statistics.median(expected),
        min(expected),
        max(expected),
    )


def test_of_several_rows_it_is_the_geometric_mean_in_each_process():
    figure = two_losses().ratio(["triplet", "margin"], "PML", "ours")
    ratios = np.median(SAMPLES["PML"], axis=1) / np.median(SAMPLES["ours"], axis=1)
    means = np.sqrt(ratios * (ratios / 2))
    assert [figure.value, figure.low, figure.high] == pytest.approx(
        [np.median(means), *np.sort(means)[[0, -1]]]
    )
    low, high = two_losses().spread(["triplet", "margin"], "PML", "ours")
    assert low == pytest.approx(np.median(ratios) / 2)
    assert high == pytest.approx(np.median(ratios))


def test_what_was_stopped_has_no_figure():
    found = measured.result("losses_memory", row("triplet_all", "MB", ours=[[400.0]] * 3, PML=[[None]] * 3))
    assert found.ratio("triplet_all", "PML", "ours") is None
    assert "| triplet_all | – | stopped |" in figures.markdown(found)


def test_what_took_nothing_is_not_divided_by():
    found = measured.result("classical", row("iris", "MB", ours=[[0.0]] * 3, peer=[[1.0]] * 3))
    assert found.ratio("iris", "peer", "ours") is None


def test_the_unknown_row_is_named():
    with pytest.raises(KeyError, match="losses_b180 has no row 'tripelt'; it has triplet, margin"):
        two_losses().row("tripelt")


def test_a_result_is_read_as_it_was_written_with_every_sample(tmp_path):
    written = two_losses()
    paths = figures.save(written, tmp_path)
    assert [path.name for path in paths] == ["losses_b180.json", "losses_b180.md"]
    assert figures.load("losses_b180", tmp_path) == written
    assert figures.load("losses_b1024", tmp_path) is None
    stored = json.loads(paths[0].read_text(encoding="utf-8"))
    assert stored["rows"][0]["samples"] == SAMPLES
    assert len(paths[0].read_text(encoding="utf-8").splitlines()) < 60  # a line per row, not per sample


def test_the_table_has_the_distance_to_the_floor_first_and_says_where_it_comes_from():
    text = figures.markdown(two_losses())
    assert "|  | ours ÷ floor | PML ÷ ours | ours | what was compared |" in text
    assert "| triplet | 2.0 × (1.40–2.5) | 2.2 × (2.0–4.0) | 4.0 ms (3.5–5.0) |  |" in text
    for fact in ("Test processor", "2 cores", "2 threads", "torch 2.9", "2026-01-02", "012345678", "1.2%"):
        assert fact in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.012"), (0.512, "0.51"), (1.239, "1.24"), (3.46, "3.5"), (2376, "2,376")]
)
def test_figures_have_as_many_digits_as_they_deserve(value, text):
    assert figures.number(value) == text


def test_results_of_other_code_or_format_are_stale_and_deleted(tmp_path):
    figures.save(measured.result("mining", row("hard", **SAMPLES)), tmp_path)
    figures.save(measured.result("input", row("x", **SAMPLES), code="other"), tmp_path)
    (tmp_path / "training.json").write_text('{"rows": 20000}')
    (tmp_path / "losses_b7.json").write_text('{"format": 0}')
    deleted = {path.name: reason for path, reason in figures.delete_stale(tmp_path)}
    assert deleted == {
        "input.json": "benchmarks/input.py has changed since",
        "training.json": f"file format 0, now {figures.FORMAT}",
        "losses_b7.json": "no benchmark of this name",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mining.json", "mining.md"]


def test_a_stale_result_is_not_quoted(tmp_path):
    figures.save(measured.result("mining", row("hard", **SAMPLES), code="other"), tmp_path)
    assert figures.current("mining", tmp_path) is None
    assert "All of it is not measured yet." in quote.table(tmp_path)


def results_for_every_quote(folder) -> None:
    rows: dict[str, dict[str, figures.Row]] = {}
    for one in quote.QUOTES:
        sides = {"floor": SAMPLES["floor"], "ours": SAMPLES["ours"]}
        sides |= {peer: SAMPLES["PML"] for _, peer in one.beside}
        rows.setdefault(one.result, {}).update({name: row(name, **sides) for name in one.rows})
    for name, found in rows.items():
        figures.save(measured.result(name, *found.values()), folder)


def test_the_quoted_table_says_what_the_results_say(tmp_path):
    results_for_every_quote(tmp_path)
    text = quote.table(tmp_path)
    assert "not measured yet" not in text
    assert (
        "| all retrieval scores of 20,000 × 512 | 2.0 × (1.40–2.5) | half the N × N product | "
        "pytorch-metric-learning's calculator | 2.2 × (2.0–4.0) |" in text
    )
    assert "| 2.0 × (1.40–2.5); rows 2.0–2.0 |" in text
    assert (
        "- Test processor, 2 cores, 2026-01-02, commit 012345678, others used at most 1.2% of the machine"
        in text
    )


def test_a_missing_result_is_said_beside_measured_ones(tmp_path):
    results_for_every_quote(tmp_path)
    (tmp_path / "trunk.json").unlink()
    lines = [line for line in quote.table(tmp_path).splitlines() if "not measured yet" in line]
    assert len(lines) == 2
    assert "cached trunk" in lines[0]


def test_a_figure_changed_by_hand_is_found(tmp_path, monkeypatch):
    results_for_every_quote(tmp_path)
    document = tmp_path / "README.md"
    document.write_text("# A\n<!-- figures: measured -->\n<!-- end of figures: measured -->\nrest\n")
    monkeypatch.setattr(quote, "DOCUMENTS", {document: "measured"})
    right = quote.disagreeing(tmp_path)[document]
    assert right.startswith("# A\n")
    assert right.endswith("\nrest\n")
    document.write_text(right)
    assert quote.disagreeing(tmp_path) == {}
    document.write_text(right.replace("2.2 × (2.0–4.0)", "3.2 × (2.0–4.0)", 1))
    assert quote.disagreeing(tmp_path) == {document: right}


ALIKE = {"floor": [[1.0]] * 3, "ours": [[2.0]] * 3}
TABLES = {
    "stores": (
        [
            (
                row("load, 9 × 2", "s", **ALIKE, Milvus=[[8.0], [9.0], [7.0]]),
                {"disk": {"ours": 2**20, "Milvus": 3 * 2**20}},
            ),
            (
                row("one query, exact, 9 × 2", **ALIKE, Milvus=[[4.0]] * 3),
                {"recall": {"ours": 1.0, "Milvus": 0.99}},
            ),
            (row("one query, approximate, 9 × 2", **ALIKE), {"recall": {"ours": 0.95}}),
        ],
        [
            "| a folder | 2.0 s (2.0–2.0) | 1 MiB | 500 queries/s (500–500) | 1.000 | "
            "500 queries/s (500–500) | 0.950 |",
            "| Milvus | 8.0 s (7.0–9.0) | 3 MiB | 250 queries/s (250–250) | 0.990 |  |  |",
            "Of 9 × 2, one query after the other.",
        ],
    ),
    "export": (
        [
            (
                row(name, "ms per image", **ALIKE, torch=[[6.0]] * 3),
                {
                    "torch": {"largest difference": 0.0, "recall at 1": 0.5},
                    "ours": {"largest difference": 1e-6, "recall at 1": 0.4999, "megabytes": 13.26},
                },
            )
            for name in ("one image at a time", "32 images at a time")
        ],
        [
            "| torch |  | 6.0 ms (6.0–6.0) | 6.0 ms (6.0–6.0) | 50.00 % |  |",
            "| ONNX in onnxruntime | 13.3 MB | 2.0 ms (2.0–2.0) | 2.0 ms (2.0–2.0) | 49.99 % | 1.0e-06 |",
        ],
    ),
    "evaluation_million": (
        [(row("all retrieval scores, many", "s", floor=[[900.0]], ours=[[1800.0]]), {})],
        ["| all retrieval scores, many | 900 s (900–900) | 1,800 s (1,800–1,800) |"],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_pages_say_what_the_results_say(name, tmp_path):
    import quoted_tables  # noqa: PLC0415 - beside figures

    make = {"evaluation_million": quoted_tables.million}.get(name) or getattr(quoted_tables, name)
    assert make(tmp_path).startswith("Not measured yet: `python benchmarks/")
    rows, lines = TABLES[name]
    with_facts = [replace(one, facts=known) for one, known in rows]
    figures.save(measured.result(name, *with_facts), tmp_path)
    text = make(tmp_path)
    for line in lines:
        assert line in text
    assert "Test processor" in text


def test_a_document_without_the_comments_is_told_which(tmp_path):
    with pytest.raises(ValueError, match="needs one pair of comments <!-- figures: measured -->"):
        quote.marked("# A\n", "measured", "table")


def test_readme_agrees_with_the_results():
    assert not quote.disagreeing(), "README's figures differ from benchmarks/results: benchmarks/quote.py"


def test_the_page_on_scale_says_what_the_results_say(tmp_path):
    import scale  # noqa: PLC0415 - beside figures

    assert scale.right() == scale.PAGE.read_text(encoding="utf-8"), "run benchmarks/scale.py"
    none = scale.table(tmp_path)
    assert none.count("not measured yet") == 3 * len(scale.STORES) * len(scale.COUNTS)
    assert "| 10⁶ | a folder, float32 | 1.9 GiB |" in none
    sides = {"ours": [[10.0]], "PostgreSQL": [[50.0]]}
    rows = [figures.Row("load, 100,000 × 512", "s", sides), figures.Row("one query, exact, …", "ms", sides)]
    found = figures.Result("stores", "", "", "", "", {}, {}, tuple(rows))
    assert scale.slope(found, "load", "PostgreSQL") == 50
    assert scale.slope(found, "one query, exact", "ours") == 0.01
    assert scale.slope(found, "one query, exact", "Milvus") is None


def measured_section() -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return readme.split("\n## Measured\n")[1].split("\n## ")[0]


def test_every_number_of_the_measured_section_is_made_from_results():
    prose = re.sub(
        r"<!-- figures: (.*?) -->.*<!-- end of figures: \1 -->", "", measured_section(), flags=re.DOTALL
    )
    assert prose != measured_section()
    assert re.findall(r"\d", prose) == []


def test_documents_quote_no_ratio_outside_the_made_tables():
    ratio = re.compile(r"\d\s*×\s*(?:faster|slower|its time)|\d times (?:faster|slower)")
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert ratio.findall(document.read_text(encoding="utf-8")) == [], document.name


def test_results_on_file_are_of_the_present_code_with_their_tables():
    for path in figures.RESULTS.glob("*"):
        assert path.suffix in (".json", ".md")
        assert path.with_suffix(".json").exists(), f"{path.name} belongs to no result"
    for found in figures.every_result():
        assert found.stale() is None, f"{found.name}: {found.stale()}; delete it, or benchmarks/all"
        table = (figures.RESULTS / f"{found.name}.md").read_text(encoding="utf-8")
        assert table == figures.markdown(found), f"{found.name}.md was changed by hand"


def test_results_on_file_were_taken_on_an_idle_machine_in_three_processes():
    import load  # noqa: PLC0415 - beside figures

    for found in figures.every_result():
        assert max(found.load["shares"]) <= load.SHARE_LIMIT
        for one in found.rows:
            least = 1 if found.name in figures.ONCE else 3
            assert all(len(taken) >= least for taken in one.samples.values())


def test_every_quoted_result_has_a_benchmark_and_every_thesis_loss_exists():
    assert {one.result for one in quote.QUOTES} <= set(figures.MODULES)
    assert set(figures.THESIS) <= set(losses.names())
    for module in figures.MODULES.values():
        assert (BENCHMARKS / f"{module}.py").exists()


@pytest.fixture(scope="module")
def pages():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "hooks" / "pages.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def test_the_pages_quote_results_and_say_what_is_missing(pages, monkeypatch):
    with_counterpart = row("triplet", **SAMPLES)
    alone = row("npair_all", **{side: SAMPLES[side] for side in ("floor", "ours")})
    found = {"losses_b180": measured.result("losses_b180", with_counterpart, alone), "losses_b1024": None}
    monkeypatch.setattr(pages.figures, "current", found.get)
    assert "| 180 | 2.0 × (1.40–2.5) | 4.0 ms (3.5–5.0) | 2.2 × (2.0–4.0) |" in pages._cost("triplet")
    assert "| 180 | 2.0 × (1.40–2.5) | 4.0 ms (3.5–5.0) | – |" in pages._cost("npair")
    assert pages._cost("margin") == "Not measured yet."
    assert (
        "| [triplet](losses/triplet.md) | no | 4.0 ms (3.5–5.0) | not measured yet |" in pages._choice_table()
    )
