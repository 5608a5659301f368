"""Labels that people give: what comes next, what is saved, and that nothing is lost."""

import csv
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from paucal.data.sources.opening import open_images
from paucal.runner.input_images import path_of_image
from paucal.types import UserError
from paucal.verbs.serve.app import make_label_app
from paucal.verbs.serve.labelling import (
    LABELS_PER_TRAINING,
    NO_CLASS,
    Conflict,
    LabelFile,
    Labelling,
    Suggestion,
    check_label_file,
)
from processes import METHOD, start

HOSTILE = "<script>alert(1)</script>"
CLASSES = ("cat", "dog, brown", HOSTILE)


def make_images(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (30, 20), (number * 2 % 256, 90, 20)).save(folder / f"{number:03d} ü, 猫.png")
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 6)


def labelling(folder: Path, saved: LabelFile, **more) -> Labelling:
    images = open_images(folder, labelled=False)
    paths = [path_of_image(images, key) for key in images.keys]
    order = more.pop("order", list(range(len(paths))))
    return Labelling(images, paths, order, CLASSES, saved, more.pop("suggestions", {}), "paucal train x")


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_labels__are_appended_undone_and_read_by_train(images: Path, tmp_path: Path) -> None:
    with LabelFile(tmp_path / "labels.csv") as saved:
        page = labelling(images, saved, order=[3, 0, 1, 2, 4, 5])
        answer = page.next("a")
        assert answer["image"]["number"] == 3
        for label in ("cat", "dog, brown", NO_CLASS, HOSTILE):
            answer = page.save("a", answer["image"]["number"], label)
        assert answer["done"] == 4
        assert answer["total"] == 6
        assert page.undo("a")["image"]["number"] == 2
        answer = page.undo("a")
        assert answer["image"]["number"] == 1
        assert page.save("a", 1, HOSTILE)["image"]["number"] == 2
        assert page.undo("b")["done"] == 3  # another tab takes nothing back
    found = rows(tmp_path / "labels.csv")
    assert found[0] == ["image_path", "label"]
    assert [row[1] for row in found[1:]] == ["cat", "dog, brown", HOSTILE]
    read = open_images(tmp_path / "labels.csv", label_separator="none")
    assert [read.classes_of(n) for n in range(3)] == [["cat"], ["dog, brown"], [HOSTILE]]


def test_tabs__get_different_images_and_the_first_label_stays(images: Path, tmp_path: Path) -> None:
    with LabelFile(tmp_path / "labels.csv") as saved:
        page = labelling(images, saved)
        one, two = page.next("one")["image"]["number"], page.next("two")["image"]["number"]
        assert {one, two} == {0, 1}
        assert page.next("one")["image"]["number"] == one  # after a reload
        page.save("one", 0, "cat")
        page.save("two", 0, "cat")  # the same label again is no conflict
        with pytest.raises(Conflict, match="was labelled cat in another tab"):
            page.save("two", 0, HOSTILE)
        assert saved.labels == {str(images / "000 ü, 猫.png"): "cat"}
        for _ in range(4):
            answer = page.save("two", page.next("two")["image"]["number"], "cat")
        assert answer["image"] is None
        assert answer["elsewhere"] == 1  # shown by the other tab
        answer = page.save("one", page.next("one")["image"]["number"], "cat")
        assert (answer["image"], answer["elsewhere"], answer["done"]) == (None, 0, 6)


def test_skipped_images__come_last_in_this_tab(images: Path, tmp_path: Path) -> None:
    with LabelFile(tmp_path / "labels.csv") as saved:
        page = labelling(images, saved)
        assert page.skip("a", page.next("a")["image"]["number"])["image"]["number"] == 1
        assert page.next("b")["image"]["number"] == 0
        page.skip("b", 0)
        shown = [page.save("a", page.next("a")["image"]["number"], "cat") for _ in range(4)]  # "b" shows another
        assert shown[-1]["image"]["number"] == 0


def test_many_tabs__lose_nothing(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", 60)
    with LabelFile(tmp_path / "labels.csv") as saved:
        page = labelling(folder, saved)
        given: dict[int, str] = {}
        lock = threading.Lock()

        def work(name: str) -> None:
            answer = page.next(name)
            while answer["image"] is not None:
                number = answer["image"]["number"]
                label = CLASSES[(number + len(name)) % 3]
                with lock:
                    assert number not in given
                    given[number] = label
                answer = page.save(name, number, label)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, ["t" * n for n in range(1, 7)]))
    found = {row[0]: row[1] for row in rows(tmp_path / "labels.csv")[1:]}
    assert len(found) == len(given) == 60
    names = sorted(folder.iterdir())
    assert found == {str(names[number]): label for number, label in given.items()}


def test_half_a_line__is_cut_off_and_the_rest_goes_on(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    with LabelFile(path) as saved:
        saved.add("a.png", "cat")
        saved.add("b, ü.png", NO_CLASS)
    whole = path.read_bytes()
    path.write_bytes(whole + b"c.png,do")
    with LabelFile(path) as saved:
        assert saved.labels == {"a.png": "cat", "b, ü.png": ""}
        assert path.read_bytes() == whole
        saved.add("c.png", "dog, brown")
    assert rows(path)[-1] == ["c.png", "dog, brown"]


def hold(path: Path, held: Event) -> None:
    with LabelFile(path):
        held.set()
        time.sleep(60)


def test_file__is_written_by_one_page_and_no_other_table_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    held = multiprocessing.get_context(METHOD).Event()
    other = start(hold, path, held)
    assert held.wait(60)
    with pytest.raises(UserError, match="another process of paucal serve is writing"), LabelFile(path):
        pass
    other.kill()  # a killed page does not keep the file locked
    other.join()
    with LabelFile(path) as saved:
        assert saved.labels == {}
    assert list(tmp_path.iterdir()) == []  # nothing is left where no label was given
    for content in ("image_path,label,unsure\na,b,1\n", "x\n", "image_path,label\na\n"):
        path.write_text(content)
        with (
            pytest.raises(UserError, match="is not a CSV file with the columns image_path,label"),
            LabelFile(path),
        ):
            pass
        assert path.read_text() == content
    with pytest.raises(UserError, match=r"must end in \.csv"):
        check_label_file("labels.txt", str(tmp_path))
    with pytest.raises(UserError, match="is inside the images"):
        check_label_file(str(tmp_path / "labels.csv"), str(tmp_path))


def test_command__is_offered_after_enough_labels(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", LABELS_PER_TRAINING + 2)
    with LabelFile(tmp_path / "labels.csv") as saved:
        page = labelling(folder, saved)
        commands = [
            page.save("a", page.next("a")["image"]["number"], "cat")["command"] for _ in range(LABELS_PER_TRAINING)
        ]
    assert commands[:-1] == [""] * (LABELS_PER_TRAINING - 1)
    assert commands[-1] == "paucal train x"


def client(page: Labelling) -> TestClient:
    return TestClient(make_label_app(page, ("127.0.0.1", "localhost")), "http://localhost:8000")


def test_page__is_served_below_a_path(images: Path, tmp_path: Path) -> None:
    with LabelFile(tmp_path / "labels.csv") as saved:
        app = make_label_app(labelling(images, saved), None)
        site = TestClient(app, "http://localhost:8000", root_path="/photos")
        assert site.get("/photos/label.js").status_code == 200
        assert site.post("/photos/api/next", json={"tab": "a"}).status_code == 200


def test_requests__are_checked(images: Path, tmp_path: Path) -> None:
    with LabelFile(tmp_path / "labels.csv") as saved:
        told = {0: Suggestion((("cat", 0.75),), "unsure")}
        site = client(labelling(images, saved, suggestions=told))
        first = site.post("/api/next", json={"tab": "a"}).json()
        assert first["image"]["answers"] == [{"name": "cat", "probability": 0.75}]
        assert first["image"]["reason"] == "unsure"
        for path, body, status in (
            ("/api/save", {"tab": "a", "image": 0, "label": "bird"}, 422),
            ("/api/save", {"tab": "a", "image": 99, "label": "cat"}, 422),
            ("/api/save", {"tab": "a", "image": -1, "label": "cat"}, 422),
            ("/api/save", {"tab": "a", "image": "0", "label": "cat"}, 422),
            ("/api/save", {"tab": "a", "image": True, "label": "cat"}, 422),
            ("/api/save", {"tab": 3, "image": 0, "label": "cat"}, 422),
            ("/api/save", {"tab": "a" * 20_000, "image": 0, "label": "cat"}, 413),
            ("/api/next", [1], 422),
        ):
            answer = site.post(path, json=body)
            assert answer.status_code == status
            assert answer.json()["error"].endswith(".")
            assert "--max-upload" not in answer.json()["error"]  # it limits only pictures to classify
        form = {"Content-Type": "text/plain"}  # as a page of another site can send it
        assert site.post("/api/save", content='{"tab":"a","image":0,"label":"cat"}', headers=form).status_code == 415
        assert site.post("/api/next", json={"tab": "a"}, headers={"Host": "evil.example"}).status_code == 400
        assert saved.labels == {}
        picture = site.get("/api/image/0")
        assert picture.headers["content-type"] == "image/jpeg"
        assert picture.headers["cross-origin-resource-policy"] == "same-origin"
        assert site.get("/api/image/99").status_code == 404
        assert site.get("/api/image/..%2f..%2fetc%2fpasswd").status_code == 404
        for name in ("/", "/label.js", "/label.css", "/page.css", "/%0A"):
            assert site.get(name).status_code == 200
        assert site.post("/api/next%0A", json={"tab": "a"}).status_code == 200  # matches the pattern of /api/next
        assert site.post("/api/save", json={"tab": "a", "image": 0, "label": HOSTILE}).json()["done"] == 1
        assert np.asarray(list(saved.labels.values())).tolist() == [HOSTILE]
