"""The Python of pages that trains on the reader's photographs runs on small sets, in a fraction of its time."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import shown_sets
from test_examples import BLOCK, PAGES, ROOT

SHORTER = (
    (re.compile(r'time="20m"'), "steps=2, heads_steps=0"),  # of the detector
    (re.compile(r'(paucal\.segment\(.*)time="\d+m"'), r'\1epochs=1, crops=1, img_size=32, init="none"'),
    (re.compile(r'time="\d+m"'), 'time="30s"'),
    (re.compile(r"epochs=[1-9]\d*"), "epochs=1"),
    (re.compile(r"cv=\d"), "cv=2"),
)


def blocks_of(page: Path) -> list[str]:
    """Return the blocks of a page in their order, which go on from each other."""
    return BLOCK.findall(page.read_text())


TRAIN = {str(page.relative_to(ROOT)): page for page in PAGES if any('"photos/"' in code for code in blocks_of(page))}


def write_tables(root: Path) -> Any:
    """Write the tables that the blocks read, the images that they ask about, and return a frame with numbers."""
    import pandas

    photos = sorted((root / "photos").glob("*/*.png"))
    files, inside = ([str(path.relative_to(base)) for path in photos] for base in (root, root / "photos"))
    classes = [path.parent.name for path in photos]
    patients = [path.name.split("_")[0] for path in photos]
    pandas.DataFrame({"file": files, "animal": classes, "patient": patients}).to_csv(root / "animals.csv", index=False)
    corners = {"xmin": 4, "ymin": 4, "xmax": 30, "ymax": 30}
    pandas.DataFrame({"file": inside, "kind": classes, **corners}).to_csv(root / "boxes.csv", index=False)
    for name in ("new", "more"):
        shutil.copytree(root / "new_photos", root / name)
    shutil.copy(root / "cat.jpg", root / "new.jpg")
    return pandas.DataFrame({"file": inside, "age": [20.5 + number for number in range(len(files))]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shown")
    shown_sets.make_folder(root)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", TRAIN)
def test_pages__python_that_trains_works(page: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "here"
    shutil.copytree(folder, root)
    monkeypatch.chdir(root)
    names = {"__name__": "__main__", "frame": write_tables(root)}
    if page in shown_sets.SEGMENTS:
        shown_sets.add_masks(root)
        shutil.rmtree(root / "photos")
        shutil.copytree(root / "cells", root / "photos")
        names["image"] = Image.open(root / "cat.jpg").convert("RGB")
    if page == "docs/regression.md":
        exec("import paucal", names)
    for code in blocks_of(TRAIN[page]):
        for pattern, short in SHORTER:
            code = pattern.sub(short, code)
        exec(compile(code, page, "exec"), names)
