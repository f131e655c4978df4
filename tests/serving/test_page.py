"""The page in a browser: what people do with it. Set NEARKIN_SCREENSHOTS to a folder to look at it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving_indexes import open_index

from nearkin.serving import ApiKey, create_app

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECRET = "a secret of some length"
_PATIENCE = 120_000  # milliseconds; machines that test may be busy
expect.set_options(timeout=_PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        reason = "needs Chromium on the PATH to open the page in"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI {reason}")
        pytest.skip(reason)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield launched
        launched.close()


class Server:
    """uvicorn in a thread of this process."""

    def __init__(self, app) -> None:
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none"))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def address(shop, older) -> Iterator[str]:
    index = open_index(shop)
    index.layout()  # kept in the folder: a busy machine may need longer for it than one request lasts
    with Server(create_app({"shop": index, "older": open_index(older)})) as found:
        yield found


class Visit:
    """A page, and whatever went wrong on it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.wrong: list[str] = []
        self.allowed: tuple[str, ...] = ()
        page.set_default_timeout(_PATIENCE)
        page.on("console", lambda one: self.wrong.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda one: self._check(one.url))

    def _check(self, url: str) -> None:
        if not url.startswith((self.address, "blob:", "data:")):
            self.wrong.append(f"asked {url}")

    def open(self, state: str = "") -> Page:
        self.page.goto(f"{self.address}#{state}")
        self.page.wait_for_selector(".card, canvas, .message")
        return self.page

    def shot(self, name: str) -> None:
        folder = os.environ.get("NEARKIN_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.wait_for_load_state("networkidle")
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))

    def names(self, column: int = 0) -> list[str]:
        cards = self.page.locator(".column").nth(column).locator(".card")
        return cards.evaluate_all("found => found.map(one => one.dataset.name)")

    def searched(self) -> None:
        """Wait until results are there."""
        expect(self.page.locator("#status")).to_contain_text("result")


@pytest.fixture
def visit(browser, address) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    made = Visit(context.new_page(), address)
    yield made
    context.close()
    assert [one for one in made.wrong if not any(word in one for word in made.allowed)] == []


def upload(page: Page, file: Path) -> None:
    page.locator("input[type=file]").first.set_input_files(str(file))


def test_without_a_query_everything_is_there(visit):
    page = visit.open()
    expect(page.locator(".card")).to_have_count(36)
    expect(page.locator("#about")).to_contain_text("Same from")
    broken = page.evaluate("[...document.images].filter(one => one.complete && !one.naturalWidth).length")
    assert broken == 0
    visit.shot("browse")


def test_search_by_upload_click_and_back(visit, photos):
    page = visit.open()
    upload(page, photos / "class2" / "3.png")
    visit.searched()
    assert visit.names()[0] == "class2/3.png"
    expect(page.locator(".score").first).to_contain_text("1.000")
    expect(page.locator(".card").first.locator(".mark.same")).to_be_visible()
    assert page.locator(".card").first.get_attribute("aria-label").endswith("above the threshold")
    visit.shot("upload")
    uploaded = visit.names()
    clicked = uploaded[4]
    page.locator(".card").nth(4).click()
    page.wait_for_url("**item=*")
    visit.searched()
    expect(page.locator(f'.card[data-name="{clicked}"]')).to_have_count(0)  # it is the query now
    visit.shot("click")
    page.go_back()
    expect(page.locator(".card").first).to_have_attribute("data-name", "class2/3.png")
    assert visit.names() == uploaded
    page.go_back()
    expect(page.locator(".card")).to_have_count(36)


def test_the_results_part_at_the_threshold(visit):
    page = visit.open("item=1&of=shop")
    visit.searched()
    marks = page.locator(".card").evaluate_all(
        "all => all.map(one => one.querySelector('.mark.same') !== null)"
    )
    assert marks == sorted(marks, reverse=True)
    if not all(marks):
        assert page.locator(".line").count() == 1


def test_drop_and_paste(visit, photos):
    page = visit.open()
    for number, kind in enumerate(("drop", "paste")):
        data = list((photos / f"class{number}" / "1.png").read_bytes())
        page.evaluate(
            """([kind, data]) => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([new Uint8Array(data)], "a.png", {type: "image/png"}));
                const Kind = kind === "drop" ? DragEvent : ClipboardEvent;
                const field = kind === "drop" ? "dataTransfer" : "clipboardData";
                window.dispatchEvent(new Kind(kind, {[field]: transfer, bubbles: true, cancelable: true}));
            }""",
            [kind, data],
        )
        expect(page.locator(".card").first).to_have_attribute("data-name", f"class{number}/1.png")


def test_a_region_is_dragged_and_forgotten(visit, photos):
    page = visit.open()
    upload(page, photos / "class1" / "2.png")
    visit.searched()
    whole = visit.names()
    box = page.locator(".asked").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_url("**crop=*")
    x, y, width, height = (float(one) for one in page.url.split("crop=")[1].split("&")[0].split("%2C"))
    assert (x, width) == (pytest.approx(0.3, abs=0.02), pytest.approx(0.3, abs=0.02))
    assert (y, height) == (pytest.approx(0.3, abs=0.02), pytest.approx(0.4, abs=0.02))
    expect(page.locator(".crop")).to_be_visible()
    visit.searched()
    visit.shot("crop")
    page.locator("#whole").click()
    expect(page.locator(".crop")).to_be_hidden()
    visit.searched()
    page.wait_for_function("name => document.querySelector('.card')?.dataset.name === name", arg=whole[0])


def test_labels_filter_the_results(visit):
    page = visit.open("item=1&of=shop")
    visit.searched()
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("SS4")
    expect(page.locator(".labels li")).to_have_count(1)
    expect(page.locator(".labels small")).to_have_text("6")
    page.keyboard.press("Enter")
    page.wait_for_url("**label=class4")
    expect(page.locator(".card")).to_have_count(6)
    assert {name.partition("/")[0] for name in visit.names()} == {"class4"}
    visit.shot("filter")
    page.locator("#filters .link").click()
    expect(page.locator(".card")).to_have_count(24)


def test_an_empty_result_says_so(visit):
    page = visit.open("label=invented")
    expect(page.locator(".message h2")).to_have_text("Nothing found")
    page.locator(".message button").click()
    expect(page.locator(".card")).to_have_count(36)


def test_a_broken_upload_is_said_in_a_sentence(visit, tmp_path):
    visit.allowed = ("415",)
    (tmp_path / "photo.png").write_bytes(b"this is not a picture")
    page = visit.open()
    upload(page, tmp_path / "photo.png")
    expect(page.locator(".message.wrong")).to_contain_text("The upload is not a picture")
    expect(page.locator(".asked")).to_contain_text("cannot show this file")
    visit.shot("error")
    page.get_by_role("button", name="Start over").click()
    expect(page.locator(".card")).to_have_count(36)


def test_a_server_that_is_gone_is_said(visit):
    visit.allowed = ("ERR_FAILED", "ERR_INTERNET")
    page = visit.open()
    page.route("**/similar*", lambda route: route.abort())
    page.locator(".card").first.click()
    expect(page.locator(".message.wrong")).to_contain_text("The server does not answer")
    page.unroute("**/similar*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".score").first).to_be_visible()


def test_two_indexes_side_by_side(visit):
    page = visit.open("item=3&of=shop")
    visit.searched()
    page.locator("#compare").select_option("older")
    expect(page.locator(".column")).to_have_count(2)
    expect(page.locator("#status")).to_contain_text("shop and older agree on")
    first, second = visit.names(0), visit.names(1)
    assert first != second
    assert page.locator(".column").nth(0).locator(".card.both").count() == len(set(first) & set(second))
    visit.shot("compare")
    page.locator(".column").nth(1).locator(".card").first.click()
    page.wait_for_url("**of=older**")
    expect(page.locator(".column").nth(0).locator(".score").first).to_be_visible()


def test_the_map_searches_by_a_point(visit):
    page = visit.open("view=map")
    canvas = page.locator("canvas")
    expect(page.locator("#status")).to_contain_text("36 items")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_be_visible()
    visit.shot("map")
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Show everything").click()
    points = page.evaluate("fetch('/api/indexes/shop/map').then(one => one.json())")
    box = canvas.bounding_box()
    place = points["ids"].index(7)
    x = box["x"] + (0.05 + 0.9 * points["x"][place]) * box["width"]
    y = box["y"] + (0.05 + 0.9 * points["y"][place]) * box["height"]
    page.mouse.move(x, y)
    expect(page.locator(".tip")).to_be_visible()
    page.mouse.click(x, y)
    page.wait_for_url("**item=*")
    visit.searched()


def test_clusters_are_browsed(visit):
    page = visit.open("view=clusters")
    expect(page.locator("#status")).to_contain_text("the largest first")
    assert page.locator(".cluster").count() >= 1
    visit.shot("clusters")
    page.locator(".cluster .card").first.click()
    visit.searched()


def test_all_of_it_works_with_the_keyboard(visit):
    page = visit.open()
    page.keyboard.press("ArrowDown")
    cards = page.locator(".card")
    expect(cards.nth(0)).to_be_focused()
    assert cards.nth(0).evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    expect(cards.nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    below = page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert below > cards.nth(1).bounding_box()["y"]
    page.keyboard.press("ArrowUp")
    expect(cards.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(cards.nth(35)).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url("**item=1**")
    visit.searched()
    picture = page.locator(".asked")
    picture.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**crop=0.2100%2C0.2500%2C0.5000%2C0.5400**")
    page.locator("body").press("Escape")
    page.wait_for_function("!location.hash.includes('crop')")
    page.locator("body").press("Escape")
    page.wait_for_function("!location.hash.includes('item')")
    expect(cards).to_have_count(36)


def test_everything_has_a_name_for_those_who_do_not_see_it(visit):
    page = visit.open("item=2&of=shop")
    visit.searched()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input:not([hidden]), a, [tabindex='0']")]
            .filter(one => !one.getAttribute("aria-label") && !one.textContent.trim())
            .filter(one => !one.closest("label"))
            .map(one => one.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    without = page.evaluate("[...document.images].filter(one => !one.hasAttribute('alt')).length")
    assert without == 0


def test_a_phone_and_the_dark(browser, address, photos):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    visit = Visit(context.new_page(), address)
    page = visit.open()
    visit.shot("phone")
    upload(page, photos / "class0" / "0.png")
    visit.searched()
    for state in ("", "&view=map", "&view=clusters", "&compare=older"):
        visit.open(f"item=1&of=shop&index=shop{state}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, state
        visit.shot(f"phone{state.replace('&', '_').replace('=', '_')}")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(19, 20, 23)"
    small = page.evaluate(
        """[...document.querySelectorAll(".card, .tabs a")]
            .filter(one => one.getBoundingClientRect().height < 40).length"""
    )
    assert small == 0  # a finger hits them
    context.close()
    assert visit.wrong == []


def test_markup_in_names_is_text(browser, shop):
    index = open_index(shop)
    listed = index.items

    def hostile(*arguments, **keywords):
        bad = '<img src=x onerror="document.title=1">'
        return [replace(item, name=f"{bad}/{item.id}", label=bad) for item in listed(*arguments, **keywords)]

    index.items = hostile
    with Server(create_app({'<b>"shop"': index})) as address:
        page = browser.new_page()
        visit = Visit(page, address)
        visit.open()
        expect(page.locator(".card").first).to_contain_text("<img src=x")
        assert page.title() == '<b>"shop" – nearkin'
        assert page.locator("main img[src=x], b").count() == 0
        page.close()
        assert visit.wrong == []


def test_the_page_asks_for_the_key(browser, shop):
    with Server(create_app({"shop": open_index(shop)}, key=ApiKey(SECRET))) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        field = page.locator("#key-value")
        field.fill("wrong")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#key-error")).to_contain_text("this is not the API key")
        field.fill(SECRET)
        page.keyboard.press("Enter")
        expect(page.locator(".card")).to_have_count(36)
        loaded = page.locator(".card img").first.evaluate("one => one.decode().then(() => one.naturalWidth)")
        assert loaded > 0  # pictures have the cookie
        context.close()
