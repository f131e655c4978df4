"""The documentation site builds without a warning, and reads without a network."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nearkin.torchvision_import  # noqa: F401  (transformers imports torchvision)
from nearkin import losses
from test_documents import ROOT, python_blocks

PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
BLOCKS = [(page, number) for page in PAGES for number in range(len(python_blocks(page)))]
NEED_RUNS = {"docs/how_to_read_a_report.md", "docs/search_page.md"}
"""Pages whose Python reads a reader's own runs or indexes: here only their imports are tried."""


def build(site: Path, *, pictures: bool) -> None:
    environment = os.environ | {"NEARKIN_DOCS_PICTURES": str(int(pictures)), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site without its drawn pictures, which take most of the time."""
    folder = tmp_path_factory.mktemp("site")
    build(folder, pictures=False)
    return folder


@pytest.fixture(scope="module")
def equations():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        import equations  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    return equations


def test_every_loss_has_a_page_with_its_equation(site):
    for name in losses.names():
        page = (site / "losses" / f"{name}.html").read_text(encoding="utf-8")
        assert "<math" in page
        assert losses.describe(name).class_name in page
        for keyword in losses.describe(name).defaults:
            assert f"<code>{keyword}</code>" in page


def test_pages_ask_nothing_of_other_hosts(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)=["']?(https?:[^"'\s>]+)""", text
        )
        assert not loaded, f"{page.name} loads {loaded}"


def test_measured_and_published_numbers_are_on_the_pages(site):
    choose = (site / "choose.html").read_text(encoding="utf-8")
    assert choose.count('href="losses/') >= len(losses.names())
    assert "B 1,024" in choose
    triplet = (site / "losses" / "triplet.html").read_text(encoding="utf-8")
    assert ("faster than PML" in triplet) or ("Not measured yet" in triplet)
    assert "Oh Song et al., 2016, CVPR" in triplet
    explain = (site / "explain.html").read_text(encoding="utf-8")
    assert "multi_similarity, P: printed ✓; measured ✗ alone, ✓ on/off with its mining" in explain


def test_the_contributors_example_is_included_not_copied(site):
    assert "SquaredHinge" in (site / "add_a_loss.html").read_text(encoding="utf-8")
    assert "SquaredHinge" not in (ROOT / "docs" / "add_a_loss.md").read_text(encoding="utf-8")


def test_every_exported_name_has_its_place_on_an_api_page(site):
    """By the anchor that mkdocstrings gives it, with a heading of its own."""
    shown = 0
    for init in sorted((ROOT / "src" / "nearkin").glob("*/__init__.py")):
        room = init.parent.name
        page = site / "api" / f"{room}.html"
        if not page.exists():
            continue
        text = page.read_text(encoding="utf-8")
        names = re.search(r"^__all__ = \[(.*?)\]", init.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for name in re.findall(r'"(\w+)"', names[1] if names else ""):
            assert f'id="nearkin.{room}.{name}"' in text, f"nearkin.{room}.{name} is not on {page.name}"
            shown += 1
    assert shown > 180


def test_the_recipe_reference_has_every_key_and_choice(site):
    page = (site / "recipe.html").read_text(encoding="utf-8")
    from nearkin.recipe.sections import SECTIONS  # noqa: PLC0415

    for section, model in SECTIONS.items():
        for key, field in model.model_fields.items():
            assert f"<code>{key}</code>" in page, f"{section}.{key}"
            assert field.default is None or str(field.default)
        for name in model.registry.names() if hasattr(model, "registry") else ():
            assert f"<code>{name}</code>" in page, f"{section}.name={name}"
    without_meaning = re.findall(r"<td><code>(\w+)</code></td>(?:<td>[^<]*</td>){3}<td></td>", page)
    assert without_meaning == []


def test_a_key_without_a_description_would_be_found():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        from reference import attributes  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    from nearkin.recipe.recipe import Recipe  # noqa: PLC0415
    from nearkin.recipe.sections import SECTIONS  # noqa: PLC0415

    for model in SECTIONS.values():
        assert set(model.model_fields) <= set(attributes(model)), model.__name__
    assert set(Recipe.model_fields) - set(SECTIONS) <= set(attributes(Recipe))


def test_the_glossary_defines_each_word_once():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [
        word
        for cell in re.findall(r"^\| (\*\*.*?) \|", text, re.MULTILINE)
        for word in re.findall(r"\*\*(.+?)\*\*", cell)
    ]
    assert len(words) == len(set(words))
    needed = {
        "positive",
        "negative",
        "anchor",
        "proxy",
        "gallery",
        "query",
        "Recall@k",
        "MAP@R",
        "task",
        "run",
    }
    needed |= {"recipe", "model", "embedder", "protocol", "contender", "experiment"}
    assert needed <= set(words)


def test_equations_lose_nothing_on_the_way(equations):
    assert doctest.testmod(equations).failed == 0
    for name in losses.names():
        equation = losses.describe(name).equation.split("\n\n")[0]
        html = equations.equation_html(equation)
        assert html.count("<math") == len(equation.splitlines())
        shown = re.sub(r"<[^>]+>|&#x[0-9A-F]+;|\s", "", html)
        for word in re.findall(r"(?<![_A-Za-z{])[A-Za-z]{4,}(?![_A-Za-z])", equation):
            assert word in shown, f"{name} lost {word}"


@pytest.mark.usefixtures("fewer_glyphs")
@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_the_pages_python_runs(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = python_blocks(page)[number]
    for package in re.findall(r"^# needs: (\w+)", code, flags=re.MULTILINE):
        pytest.importorskip(package)
    if page in NEED_RUNS:
        code = "\n".join(line for line in code.splitlines() if line.startswith(("import ", "from ")))
        assert code
    exec(compile(code, f"{page} block {number}", "exec"), {"__name__": "docs"})


def test_the_pages_have_python_to_run():
    assert len(BLOCKS) >= 2


@pytest.mark.slow
def test_the_whole_site_reads_in_a_browser_without_network(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium")
    build(tmp_path, pictures=True)
    wrong: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        for name in ("losses/multi_similarity.html", "errata.html", "losses/moving.html", "explain.html"):
            page.goto((tmp_path / name).as_uri())
            page.wait_for_timeout(300)
            sizes = page.eval_on_selector_all(
                "math", "found => found.map(one => one.getBoundingClientRect().height)"
            )
            assert all(size > 10 for size in sizes)
            assert len(sizes) > 0 or name in ("losses/moving.html", "explain.html")
            broken = page.eval_on_selector_all(
                "img", "found => found.filter(one => !one.naturalWidth).length"
            )
            assert broken == 0
        browser.close()
    assert wrong == []
