"""Pictures of the search page for ``docs/search_page.md``, of the embedded data set glyphs.

``python docs/hooks/search_page_pictures.py`` writes them into ``docs/pictures``, or into the folder given.
Two small networks are trained, test characters are indexed with both, and the page is opened in Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import nearkin
from nearkin.index import Index
from nearkin.serving import create_app

PICTURES = ("results", "region", "compare", "map", "phone")
_WIDE = {"width": 1180, "height": 700}
_CLASSES, _EACH, _SIZE = 160, 20, 28


def main(folder: Path, *, epochs: int = 8, classes: int = _CLASSES, shown: int = 30) -> None:
    """Write the pictures.

    Args:
        folder: Where to.
        epochs: Of the better network.
        classes: Of the data set.
        shown: Test classes that are indexed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        data = {"name": "glyphs", "root": str(home / "glyphs"), "num_classes": classes}
        data |= {"images_per_class": _EACH, "size": _SIZE, "transform": "resized_crop"}
        indexes = {
            name: _index(home, name, data, number, shown)
            for name, number in (("glyphs", epochs), ("early", 1))
        }
        query = next((home / "photos").rglob("*.png"))
        with _Server(create_app(indexes)) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport=_WIDE)  # type: ignore[arg-type]
            _photograph(page, address, query, folder)
            phone = browser.new_context(viewport={"width": 390, "height": 700}, color_scheme="dark")
            _open(
                phone.new_page(),
                f"{address}#index=glyphs&item=25&of=glyphs",
                folder / "search_page_phone.png",
            )
            browser.close()


def _index(home: Path, name: str, data: dict[str, Any], epochs: int, shown: int) -> Index:
    """An index of the test characters, by a network that was trained for so long."""
    network = {"name": "convnet", "size": _SIZE, "width": 16, "embedding_dim": 64}
    recipe = {"data": data, "network": network, "loss": {"name": "proxy_anchor"}}
    recipe["training"] = {"epochs": epochs}
    run = nearkin.train(nearkin.Recipe.parse(recipe), output=home / "runs" / name, progress=False)
    photos = home / "photos"
    if not photos.exists():
        _write_photos(data, photos, shown)
    return Index.build(nearkin.load(run.path), photos, home / f"{name}.index")


def _write_photos(data: dict[str, Any], photos: Path, shown: int) -> None:
    """Characters as files in a folder per class, as people have photographs."""
    values = {key: value for key, value in data.items() if key != "transform"}
    samples = nearkin.data.build(values.pop("name"), values.pop("root"), **values).require_test()
    for number in range(len(samples)):
        pixels, label = samples[number]
        if label >= shown:
            continue
        home = photos / samples.class_names[label].split(" ", 1)[1].replace("/", "_")
        home.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels[0].numpy()).resize((168, 168), Image.Resampling.BICUBIC)
        picture.save(home / f"{number:04}.png")


class _Server:
    """uvicorn in a thread."""

    def __init__(self, app: Any) -> None:
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none"))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def _photograph(page: Page, address: str, query: Path, folder: Path) -> None:
    page.goto(address)
    page.wait_for_selector(".card")
    page.locator("input[type=file]").set_input_files(str(query))
    page.wait_for_selector(".score")
    _shoot(page, folder / "search_page_results.png")
    box = page.locator(".asked").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.15 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.85 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_url("**crop=*")
    page.mouse.move(0, 0)
    _shoot(page, folder / "search_page_region.png")
    item = "index=glyphs&item=61&of=glyphs"
    _open(page, f"{address}#{item}&compare=early", folder / "search_page_compare.png")
    _open(page, f"{address}#index=glyphs&view=map", folder / "search_page_map.png")


def _open(page: Page, address: str, file: Path) -> None:
    page.goto(address)
    page.wait_for_selector(".score, canvas", timeout=120_000)
    if "map" in address:
        page.locator("canvas").hover(position={"x": 400, "y": 260})
        page.locator("canvas").focus()
        page.keyboard.press("ArrowRight")
    _shoot(page, file)


def _shoot(page: Page, file: Path) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    page.screenshot(path=str(file))
    with Image.open(file) as taken:  # few colours: a third of the bytes
        taken.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "pictures")
