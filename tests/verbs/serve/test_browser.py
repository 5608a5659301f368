"""The page in a browser: with a mouse, with the keyboard, on a phone."""

import base64
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from paucal.verbs.serve.app import make_app
from paucal.verbs.serve.picture_predictor import PicturePredictor
from verbs.serve.test_app import HOSTILE, deployed, picture

pytestmark = pytest.mark.slow
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
DROP = """([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, {type: "image/png"}));
  document.dispatchEvent(new DragEvent("drop", {dataTransfer: carried, bubbles: true, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    app = make_app(PicturePredictor(deployed(), None), HOSTILE, 10**6, ("127.0.0.1",))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=[(1200, 900), (390, 800)], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_context(viewport={"width": request.param[0], "height": request.param[1]}).new_page()
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("dialog", lambda dialog: failed.append(dialog.message))
    page.goto(address)
    yield page
    assert not failed
    page.close()


def fits(page: Any) -> bool:
    """Return whether nothing is wider than the window."""
    return page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_pictures_are_answered_and_explained(page: Any, tmp_path: Path) -> None:
    names = [tmp_path / "one.png", tmp_path / "<img src=x onerror=alert(1)>.png", tmp_path / "bad.jpg"]
    for number, name in enumerate(names[:2]):
        name.write_bytes(picture(number))
    names[2].write_bytes(b"no picture")
    page.set_input_files("#files", [str(name) for name in names])
    page.get_by_text("3 pictures looked at").wait_for()
    answers = page.locator(".answer")
    assert answers.count() == 3
    assert "cannot be decoded" in answers.nth(0).locator(".problem").inner_text()
    assert answers.nth(2).locator("tbody tr").count() == 3
    assert HOSTILE in answers.nth(2).inner_text()  # as text: a script would have opened a dialog
    assert fits(page)
    answers.nth(2).locator(".why").click()
    page.locator(".maps img").first.wait_for()
    assert answers.nth(2).locator(".maps img").count() == 2
    assert answers.nth(2).locator(".maps img").first.evaluate("(picture) => picture.naturalWidth") > 100
    assert fits(page)


def test_pictures_may_be_dropped(page: Any) -> None:
    page.evaluate(DROP, ["dropped.png", base64.b64encode(picture()).decode()])
    page.get_by_text("1 picture looked at").wait_for()
    assert page.locator(".shown").get_attribute("alt") == "dropped.png"


def test_keyboard_reaches_everything(page: Any, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(picture())
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "files"
    with page.expect_file_chooser() as chosen:
        page.keyboard.press("Space")
    chosen.value.set_files(str(tmp_path / "one.png"))
    page.get_by_text("1 picture looked at").wait_for()
    page.locator("#files").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "why"
    page.keyboard.press("Enter")
    page.locator(".maps img").first.wait_for()
