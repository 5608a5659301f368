"""Labelling in a browser: two tabs, a killed server, the keyboard and a phone, and no label lost."""

import csv
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verbs.serve.test_browser import browser, fits  # noqa: F401
from verbs.serve.test_labelling import make_images

pytestmark = pytest.mark.slow
CLASSES = ("cat", "dog", "owl")
PROGRAM = "from paucal.cli.main import main; raise SystemExit(main())"


class Server:
    """The page of a folder's images, in a process of its own.

    Args:
        folder: Folder that holds the images and gets the labels.
    """

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        words = ("--label", folder / "images", "--save", folder / "labels.csv", "--port", self.port, "--classes")
        self._command = [sys.executable, "-c", PROGRAM, "serve", *map(str, words), *CLASSES]
        self.start()

    def start(self) -> None:
        """Start, and wait until it listens."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(self._command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert any("in a browser" in line for line in self._process.stdout)

    def end(self, how: signal.Signals) -> None:
        """Send a signal, and wait for the end."""
        self._process.send_signal(how)
        self._process.communicate(timeout=60)


class Tab:
    """A page that labels by one key for each class, or by touch.

    Args:
        page: Page of the browser.
        given: Label by number of the image, of all tabs.
        by_key: Whether keys are pressed.
    """

    def __init__(self, page: Any, given: dict[int, str], by_key: bool) -> None:
        self.page, self._given, self._by_key = page, given, by_key
        self.failed: list[str] = []
        page.on("pageerror", lambda error: self.failed.append(str(error)))

    @property
    def name(self) -> str:
        """Name of the image that is shown; "" for none."""
        return self.page.locator("#name").inner_text()

    def open(self, port: int) -> None:
        """Open the page, and wait for an image."""
        self.page.goto(f"http://127.0.0.1:{port}/")
        self.page.wait_for_function("() => document.getElementById('name').textContent")
        assert fits(self.page)

    def press(self) -> str:
        """Give the image its label, and return its name."""
        name = self.name
        label = CLASSES[int(name[:3]) % 3]
        self._given[int(name[:3])] = label
        if self._by_key:
            self.page.keyboard.press(str(CLASSES.index(label) + 1))
        else:
            self.page.locator(f"#classes button[data-name={label}]").click()
        return name

    def label(self) -> None:
        """Give the image its label, and wait for the next image or the end."""
        self.wait_for_other(self.press())

    def wait_for_other(self, name: str) -> None:
        """Wait until an image of another name, or none, is shown."""
        self.page.wait_for_function("(name) => document.getElementById('name').textContent !== name", arg=name)


@pytest.fixture
def tabs(browser: Any) -> Iterator[tuple[dict[int, str], Tab, Tab]]:  # noqa: F811
    """Labels that were given, and a desktop and a phone that give them."""
    given: dict[int, str] = {}
    sizes = ({"width": 1200, "height": 900}, {"width": 390, "height": 800})
    desktop, phone = (
        Tab(browser.new_context(viewport=size).new_page(), given, by_key=size["width"] > 500) for size in sizes
    )
    yield given, desktop, phone
    for tab in (desktop, phone):
        assert tab.failed == []
        tab.page.context.close()


def test_two_tabs_and_a_killed_server__lose_no_label(tabs: tuple[dict[int, str], Tab, Tab], tmp_path: Path) -> None:
    make_images(tmp_path / "images", 100)
    server = Server(tmp_path)
    given, desktop, phone = tabs
    try:
        for tab in (desktop, phone):
            tab.open(server.port)
        for _ in range(20):
            desktop.label()
            phone.label()
        before = desktop.name
        desktop.page.keyboard.press("z")  # takes the latest label of this tab back
        desktop.wait_for_other(before)
        desktop.page.get_by_text("39 of 100").wait_for()
        assert int(desktop.name[:3]) in given
        desktop.label()
        server.end(signal.SIGKILL)
        waiting = phone.press()  # while nobody answers
        phone.page.get_by_text("The server does not answer").wait_for()
        server.start()
        phone.wait_for_other(waiting)
        desktop.page.reload()
        desktop.page.wait_for_function("() => document.getElementById('name').textContent")
        while len(given) < 100:
            for tab in (desktop, phone):
                if tab.name:
                    tab.label()
        desktop.page.reload()
        desktop.page.get_by_text("100 of 100").wait_for()
        desktop.page.get_by_text("All images are labelled.").wait_for()
    finally:
        server.end(signal.SIGINT)
    with (tmp_path / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {int(Path(row["image_path"]).name[:3]): row["label"] for row in rows} == given
    assert len(rows) == 100
