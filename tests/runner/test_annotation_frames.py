"""DataFrames of boxes and of paths of masks as DATA of detect, segment, check and convert."""

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import paucal
from cli.calls import make_scenes
from paucal.data.label_kinds import describe_labels
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.runner.frames import takes_annotations
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError
from tasks.detection.made import TINY, pictures

SMALL = {"model": "test_resnet", "init": "none", "workers": 0, "device": "cpu"}


@pytest.fixture(params=["arrow", "pandas", "polars"])
def table(request):
    """Make a table of a library for data frames from columns."""
    if request.param == "arrow":
        return pa.table
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed").DataFrame


def write_pictures(root: Path, count: int = 6) -> dict[str, list]:
    """Write images in two folders of the same names, and return the columns of their boxes."""
    columns: dict[str, list] = {"where": [], "kind": [], "xmin": [], "ymin": [], "xmax": [], "ymax": [], "split": []}
    for number, (image, rows) in enumerate(pictures(count)):
        path = root / f"cam{number % 2}" / f"{number // 2} é, x.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        for name, *edges in rows:
            for column, value in zip(columns, (str(path), name, *map(float, edges), "train"), strict=True):
                columns[column].append(value)
    return columns


@takes_annotations
def stored(data, **settings):
    """Return what a function of Python is given in the place of a table."""
    return Path(data), settings


def test_boxes__are_those_of_the_rows(tmp_path: Path, table) -> None:
    columns = write_pictures(tmp_path / "photos")
    file, settings = stored(table(columns), image="where", label="kind", seed=3)
    assert settings == {"seed": 3}
    boxed = open_boxed_images(file)
    assert boxed.images.location == str(tmp_path / "photos")
    assert sorted(boxed.images.keys) == sorted(f"cam{n % 2}/{n // 2} é, x.png" for n in range(6))
    for number, (image, rows) in enumerate(pictures(6)):
        key = f"cam{number % 2}/{number // 2} é, x.png"
        place = boxed.images.keys.index(key)
        assert boxed.images.store.read(place).tobytes() == image.tobytes()
        assert boxed.boxes[key].corners.tolist() == [list(row[1:]) for row in rows]
        assert [boxed.classes[label] for label in boxed.boxes[key].labels] == [row[0] for row in rows]


def test_boxes__may_be_a_column_of_lists_and_lack_an_object(tmp_path: Path) -> None:
    columns = write_pictures(tmp_path)
    edges = [columns.pop(name) for name in ("xmin", "ymin", "xmax", "ymax")]
    columns |= {"bbox": [list(box) for box in zip(*edges, strict=True)]}
    Image.new("RGB", (96, 64)).save(tmp_path / "empty.png")
    for name, value in zip(columns, (str(tmp_path / "empty.png"), None, "train", None), strict=True):
        columns[name].append(value)
    boxed = open_boxed_images(stored(pa.table(columns), image="where", label="kind")[0])
    assert len(boxed.boxes["empty.png"].corners) == 0
    assert boxed.boxes["cam0/0 é, x.png"].corners.tolist() == [list(row[1:]) for row in pictures(1)[0][1]]


def test_relative_paths__are_relative_to_the_root_or_the_working_folder(tmp_path: Path, monkeypatch) -> None:
    columns = write_pictures(tmp_path)
    columns["where"] = [str(Path(path).relative_to(tmp_path)) for path in columns["where"]]
    first = stored(pa.table(columns), image="where", label="kind", data_root=tmp_path)[0]
    monkeypatch.chdir(tmp_path)
    assert stored(pa.table(columns), image="where", label="kind")[0] == first
    assert len(open_boxed_images(first).images) == 6


def test_missing_image__is_named_and_not_replaced_by_one_of_the_same_name(tmp_path: Path) -> None:
    columns = write_pictures(tmp_path)
    for gone, words in (("cam0/0 é, x.png", "but there is no such file"), ("cam0/../gone.png", r"a path with '\.\.'")):
        rows = dict(columns)
        first = columns["where"][0]
        rows["where"] = [str(tmp_path / gone) if path == first else path for path in columns["where"]]
        file = tmp_path / "boxes.csv"
        with file.open("w", newline="") as opened:
            names = ["filename", "class", *list(columns)[2:]]
            csv.writer(opened).writerows([names, *zip(*rows.values(), strict=True)])
        Path(first).unlink(missing_ok=True)
        with pytest.raises(UserError, match=rf"names '{tmp_path / gone}', {words}"):
            open_boxed_images(file)


def test_masks__are_those_of_the_named_columns_whatever_the_others_are_called(tmp_path: Path) -> None:
    root = make_scenes(tmp_path / "set", 4, parts=("a", "b"))
    names = [f"{n:02d}.png" for n in range(4)]
    wrong = [str(root / "a" / name) for name in reversed(names)]
    columns = {
        "file": [str(root / "a" / name) for name in names],
        "drawn": [str(root / "b" / name) for name in names],
        **dict.fromkeys(("image", " Image-Path", "Mask Path"), wrong),
    }
    file, _ = stored(pa.table(columns), image="file", mask="drawn")
    assert [(pair.key, pair.masks) for pair in find_pairs(file).pairs] == [
        (name, (root / "b" / name,)) for name in names
    ]


def test_masks__are_the_files_that_a_column_names(tmp_path: Path, table) -> None:
    root = make_scenes(tmp_path / "set", 6, parts=("a", "b"))
    names = [f"{n:02d}.png" for n in range(6)]
    columns = {
        "photo": [str(root / "a" / name) for name in names],
        "drawn": [str(root / "b" / name) for name in names],
        "split": ["train"] * 4 + ["val", "test"],
    }
    file, _ = stored(table(columns), image="photo", mask="drawn")
    pairs = find_pairs(file)
    masked = read_masks(images_of_pairs(pairs, str(file)), pairs)
    assert masked.images.keys == names
    assert masked.images.declared_splits == columns["split"]
    assert masked.masks.read(3).tolist() == np.asarray(Image.open(root / "b" / names[3])).tolist()
    assert describe_labels(file) == {"segment": "a table of masks"}
    found = {one.name: one.text for one in paucal.check(table(columns), image="photo", mask="drawn").findings}
    assert found["masks"] == "6 images with masks: this is data for paucal segment"


def test_detector__is_trained_on_a_table_and_answers_with_one(tmp_path: Path) -> None:
    columns = write_pictures(tmp_path / "photos", 8)
    del columns["split"]
    given = {**TINY, "img_size": [64], "steps": 1}
    run = paucal.detect(pa.table(columns), image="where", label="kind", output=tmp_path / "run", **given)
    (kept,) = (tmp_path / "run").glob("frame-*.csv")
    assert f"data: {kept}" in (tmp_path / "run/config.yaml").read_text()
    assert paucal.evaluate(tmp_path / "run").metrics["ap"] == pytest.approx(run.metrics["ap"], abs=1e-6)
    asked = pa.table({"path": sorted(set(columns["where"]))[:2]})
    answers = paucal.detect_objects(run, asked)
    found = answers.to_arrow()
    assert len(found) > 0
    assert found.column_names == ["path", "class", "score", "left", "top", "right", "bottom"]
    assert len(found) == sum(len(row.found) for row in answers)
    assert found["path"].to_pylist() == [row.path for row in answers for _ in range(len(row.found))]
    corners = np.stack([found[name].to_numpy() for name in ("left", "top", "right", "bottom")], 1)
    assert np.allclose(corners, np.concatenate([row.found.boxes for row in answers]))
    if find_spec("pandas") is not None:
        assert set(run.predictions["class"]) <= {"red", "blue"}


def test_segmenter__is_trained_on_a_table(tmp_path: Path) -> None:
    root = make_scenes(tmp_path / "set", 8, parts=("a", "b"))
    paths = {name: [str(path) for path in sorted((root / name).iterdir())] for name in "ab"}
    given = {**SMALL, "img_size": [32], "width": 8, "batch_size": 4, "crops": 1, "epochs": 1}
    columns = pa.table({"image": paths["a"], "mask": paths["b"]})
    run = paucal.segment(columns, output=tmp_path / "run", **given)
    (kept,) = (tmp_path / "run").glob("frame-*.csv")
    again = paucal.evaluate(tmp_path / "run")
    assert again.metrics["mean_iou"] == pytest.approx(run.metrics["mean_iou"], abs=1e-6)
    assert kept.read_text().splitlines()[0] == "filename,mask"


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        (
            {"path": ["a.png"], "xmin": [1]},
            {"label": "kind"},
            "label: the table has no column 'kind'; its columns are 'path'",
        ),
        (
            {"path": [1], "class": ["a"], "bbox": ["1 2 3 4"]},
            {},
            "the image in row 1 is of type int, expected the path",
        ),
        ({"path": ["gone.png"], "class": ["a"], "bbox": ["1 2 3 4"]}, {}, "but there is no such image"),
        ({"path": ["gone.png"], "mask": ["gone too.png"]}, {}, "names .*, but there is no such file"),
    ],
)
def test_other_tables__are_refused_in_a_sentence(tmp_path: Path, columns, settings, words) -> None:
    opener = find_pairs if "mask" in columns else open_boxed_images
    with pytest.raises(UserError, match=words):
        opener(stored(pa.table(columns), data_root=tmp_path, **settings)[0])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("../a.png,b.png,", "line 2 of .*masks.csv has a path outside of the table's folder"),
        ("a.png,../../x.png,", "has a path outside of the table's folder"),
        ("a.png,gone.png,", "names 'gone.png', but there is no such file"),
        ("a.png,b.png,shelf", "has the split 'shelf', expected train, val or test"),
        ("a.png,b.png,train\na.png,b.png,val", "puts .*a.png' into a second split"),
        ("a.png,b.png,train\nb.png", "line 3 of .* has 1 cell, but the first line has 3: correct the line"),
        ("a.png,,", "contains no masks: fill in the column 'mask'"),
    ],
)
def test_tables_of_masks__are_read_below_their_folder_alone(tmp_path: Path, rows: str, words: str) -> None:
    for name in ("a.png", "b.png"):
        Image.new("L", (8, 8)).save(tmp_path / name)
    (tmp_path / "masks.csv").write_text(f"image,mask,split\n{rows}\n")
    with pytest.raises(UserError, match=words):
        find_pairs(tmp_path / "masks.csv")
