"""The page of a run in a browser: wide and on a phone, light and dark."""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from cli.calls import call, make_photos
from paucal.report.page import write_report

pytestmark = pytest.mark.slow
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
EVIL = "<script>alert(1)</script>"
CONTRAST = """() => [...document.querySelectorAll("p, td, th, h1, h2, a, pre, summary, figcaption")].map((one) => {
  const light = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = one;
  while (behind && /rgba\\(0, 0, 0, 0\\)/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const ground = light(behind ? getComputedStyle(behind).backgroundColor : "rgb(255, 255, 255)");
  const ink = light(getComputedStyle(one).color);
  return (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    photos = make_photos(folder / "photos", size=(64, 64), greys=(60, 12, 60))  # some are taken for others
    (photos / "class0").rename(photos / EVIL.replace("/", "\u2215"))
    words = ["--img-size", "32", "-j", "0", "--model", "vit_mini", "--model-args", "depth=1", "--epochs", "3"]
    assert call("train", photos, *words, "--init", "none", "--output", folder / "run") == 0
    page = write_report(folder / "run")
    assert page.stat().st_size < 5 * 10**6
    return page.as_uri()


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=str)
def page(request: pytest.FixtureRequest, browser: Any, report: str) -> Iterator[Any]:
    width, scheme = request.param
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("dialog", lambda dialog: failed.append(dialog.message))
    page.on("request", lambda asked: failed.append(asked.url) if asked.url.startswith("http") else None)
    page.goto(report)
    yield page
    assert not failed
    page.context.close()


def test_every_part_is_reached_and_nothing_is_wider_than_the_window(page: Any) -> None:
    links = page.locator("nav a")
    assert {"#result", "#data", "#curves", "#detail", "#use", "#again", "#settings", "#environment"} <= {
        links.nth(number).get_attribute("href") for number in range(links.count())
    }
    for number in range(links.count()):
        links.nth(number).click()
        target = page.url.partition("#")[2]
        assert page.locator(f"#{target}").evaluate("(one) => one.getBoundingClientRect().top < innerHeight")
    page.locator("#settings summary").click()
    assert page.locator("#settings table").is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_pictures_are_shown_and_large_enough_to_read(page: Any) -> None:
    assert EVIL.replace("/", "\u2215") in page.locator("#detail").inner_text()  # as text: a script opens a dialog
    shown = page.locator("figure img").evaluate_all("(all) => all.map((one) => [one.naturalWidth, one.width])")
    assert len(shown) >= 5
    assert all(own > 0 for own, _ in shown)
    own, width = page.locator("#curves img").evaluate("(one) => [one.naturalWidth, one.width]")
    assert width / own > 0.6  # letters of 8 points stay readable


def test_all_text_stands_out_from_what_is_behind_it(page: Any) -> None:
    contrast = page.evaluate(CONTRAST)
    assert len(contrast) > 50
    assert min(contrast) >= 4.5  # WCAG 2.2, 1.4.3


def test_meaning_of_scores_is_told_once(page: Any) -> None:
    told = re.findall("fraction of images whose predicted class is correct", page.locator("#detail").inner_text())
    assert len(told) == 1
