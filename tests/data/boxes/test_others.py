"""LabelMe JSON, CVAT XML and tables of boxes."""

from pathlib import Path

import numpy as np
import pytest

from data.boxes.written import PIXELS, SHARES, labelme, write_cvat, write_labelme, write_tables
from paucal.data.boxes.annotations import AnnotationSet
from paucal.data.boxes.opening import read_boxes
from paucal.data.stores import FileStore
from paucal.types import UserError
from tasks.detection.made import pictures


def require_read(described: AnnotationSet) -> None:
    assert len(described.images) == 6
    for one in described.images:
        rows = pictures(6)[int(Path(one.key).stem)][1]
        assert one.names == [row[0] for row in rows]
        assert [pytest.approx(row[1:], abs=1e-3) for row in rows] == one.boxes


# LabelMe


@pytest.mark.parametrize(("images", "path"), [(".", "{}.png"), ("images", "..\\images\\{}.png"), ("images", "{}.png")])
def test_labelme__beside_the_images_or_in_a_folder(tmp_path: Path, images: str, path: str):
    require_read(read_boxes(write_labelme(tmp_path / "set", images, path))[1])


def test_labelme__shapes_of_all_kinds(tmp_path: Path):
    root = write_labelme(tmp_path / "set")
    triangle = [[10, 10], [30, 10], [20, 40]]
    shapes = [
        {"label": "a", "points": triangle, "shape_type": "polygon"},
        {"label": "a", "points": [[40, 20], [40, 30]], "shape_type": "circle"},
        {"label": "a", "points": triangle, "group_id": 1},  # polygons, as old versions have no kind
        {"label": "a", "points": [[50, 50], [60, 50], [60, 60]], "group_id": 1},
        {"label": "b", "points": triangle, "group_id": 1},
        {"label": "a", "points": [[3, 4], [7, 9]], "shape_type": "mask", "mask": "iVBO"},
        {"label": "a", "points": [[1, 1]], "shape_type": "point"},
        {"label": 7, "points": [[5, 6], [1, 2]], "shape_type": "rectangle"},
    ]
    (root / "0.json").write_text(labelme(shapes, "0.png"))
    described = read_boxes(root)[1]
    one = described.images[0]
    assert list(zip(one.names, one.boxes, strict=True)) == [
        ("a", (10, 10, 30, 40)),
        ("a", (30, 10, 50, 30)),
        ("a", (10, 10, 60, 60)),
        ("b", (10, 10, 30, 40)),
        ("a", (3, 4, 8, 10)),
        ("7", (1, 2, 5, 6)),
    ]
    assert one.outlines[2] == [[10, 10, 30, 10, 20, 40], [50, 50, 60, 50, 60, 60]]
    assert described.notes == ("1 shape without a box was not read: point 1",)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"label": "a", "points": [[1, 2]], "shape_type": "rectangle"}, "expected at least two pairs of x and y"),
        ({"label": "a", "points": "all", "shape_type": "polygon"}, "expected at least two pairs of x and y"),
        ({"label": "", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}, "without a label"),
        ({"label": "a", "points": [[1, 2], [3, 4]], "shape_type": "rotation"}, "rotated boxes are not read"),
    ],
)
def test_labelme__refuses_damaged_and_turned_shapes(tmp_path: Path, shape: dict, words: str):
    root = write_labelme(tmp_path / "set")
    (root / "0.json").write_text(labelme([shape], "0.png"))
    with pytest.raises(UserError, match=words):
        read_boxes(root)
    (root / "0.json").write_text("{")
    with pytest.raises(UserError, match=r"0\.json' cannot be read"):
        read_boxes(root)


# CVAT


@pytest.mark.parametrize("kind", ["box", "polygon", "mask"])
def test_cvat__boxes_polygons_and_masks(tmp_path: Path, kind: str):
    root = write_cvat(tmp_path / "set", kind)
    for place in (root, root / "annotations.xml"):
        described = read_boxes(place)[1]
        require_read(described)
        assert bool(described.images[0].outlines[0]) == (kind != "box")
    if kind == "mask":
        left, top, right, bottom = pictures(6)[0][1][0][1:]
        runs = described.images[0].outlines[0]
        flat = np.repeat(np.arange(len(runs["counts"])) % 2, runs["counts"]).reshape(96, 64).T
        assert flat.sum() == flat[top:bottom, left:right].sum() == (right - left) * (bottom - top)


@pytest.mark.parametrize(("turned", "box"), [(0, (20, 30, 60, 50)), (90, (30, 20, 50, 60)), (180, (20, 30, 60, 50))])
def test_cvat__ellipses_are_polygons(tmp_path: Path, turned: int, box: tuple[int, ...]):
    extra = f'<ellipse label="red" cx="40" cy="40" rx="20" ry="10" rotation="{turned}"/>'
    image = read_boxes(write_cvat(tmp_path / "set", extra=extra))[1].images[0]
    assert image.boxes[-1] == pytest.approx(box, abs=0.1)
    x, y = np.asarray(image.outlines[-1][0]).reshape(-1, 2).T - 40
    long, short = (x, y) if turned % 180 == 0 else (y, x)
    assert (long / 20) ** 2 + (short / 10) ** 2 == pytest.approx(np.ones(len(x)))
    area = abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2
    assert area == pytest.approx(np.pi * 20 * 10, rel=0.01)


def test_cvat__masks_without_a_pixel_are_counted(tmp_path: Path):
    extra = '<mask label="a" rle="4" left="1" top="1" width="2" height="2"/>'
    described = read_boxes(write_cvat(tmp_path / "set", "mask", extra=extra))[1]
    require_read(described)
    assert described.notes == ("1 shape without a box was not read: mask 1",)


def test_cvat__subsets_are_parts_and_other_shapes_are_counted(tmp_path: Path):
    described = read_boxes(write_cvat(tmp_path / "set", subset=True, extra='<points label="a" points="1,2"/>'))[1]
    assert [one.declared_split for one in described.images] == ["train"] * 4 + ["val"] * 2
    assert described.notes == ("1 shape without a box was not read: points 1",)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ('<box label="a" xtl="1" ytl="1" xbr="9" ybr="9" rotation="30"/>', "is rotated by 30 degrees"),
        ('<box label="a" xtl="1" ytl="1" xbr="x" ybr="9"/>', "whose numbers cannot be read"),
        ('<box label="" xtl="1" ytl="1" xbr="9" ybr="9"/>', "without a label"),
        ('<mask label="a" rle="0, 5" left="1" top="1" width="2" height="2"/>', "whose numbers cannot be read"),
        (
            f'<mask label="a" rle="{"9" * 30}" left="1" top="1" width="2" height="2"/>',
            "whose numbers cannot be read",
        ),
        ('<polygon label="a" points=""/>', "whose numbers cannot be read"),
        ('<ellipse label="a" cx="4" cy="4" rx="2"/>', "whose numbers cannot be read"),
    ],
)
def test_cvat__refuses_damaged_and_turned_shapes(tmp_path: Path, extra: str, words: str):
    with pytest.raises(UserError, match=words):
        read_boxes(write_cvat(tmp_path / "set", extra=extra))


@pytest.mark.parametrize(("width", "height"), [("10000000", "10000000"), ("9" * 5000, "64"), ("1", "1" + "0" * 9)])
def test_cvat__refuses_sizes_that_no_image_has(tmp_path: Path, width: str, height: str):
    root = write_cvat(tmp_path / "set", "mask")
    text = (root / "annotations.xml").read_text()
    (root / "annotations.xml").write_text(
        text.replace('width="96" height="64"', f'width="{width}" height="{height}"', 1)
    )
    words = rf"says that 'images/0\.png' has {width[:20]} x {height[:20]} pixels, expected at most 268,435,456 pixels"
    with pytest.raises(UserError, match=words):
        read_boxes(root)


def test_cvat__refuses_videos_and_missing_images(tmp_path: Path):
    root = write_cvat(tmp_path / "set")
    text = (root / "annotations.xml").read_text()
    (root / "annotations.xml").write_text(text.replace('name="3.png"', 'name="9.png"'))
    with pytest.raises(UserError, match=r"describes '9\.png', but there is no such image"):
        read_boxes(root)
    (root / "annotations.xml").write_text(text.replace("<version>", '<track id="0" label="a"/><version>'))
    with pytest.raises(UserError, match="has tracks of objects in a video, which are not read"):
        read_boxes(root)


# Tables


@pytest.mark.parametrize("header", [PIXELS, SHARES], ids=["pixels", "shares"])
@pytest.mark.parametrize(
    ("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-16"), (",", "utf-16-be")]
)
def test_tables__in_pixels_and_in_shares(tmp_path: Path, header: list[str], delimiter: str, encoding: str):
    root = write_tables(tmp_path / "set", header, {"boxes.csv": range(6)}, delimiter, encoding)
    require_read(read_boxes(root)[1])
    require_read(read_boxes(root / "boxes.csv")[1])
    parts = {"train_labels.csv": range(4), "Test_labels.csv": range(4, 6)}
    described = read_boxes(write_tables(tmp_path / "parts", header, parts, delimiter, encoding))[1]
    require_read(described)
    assert {Path(one.key).stem: one.declared_split for one in described.images} == {
        **dict.fromkeys("0123", "train"),
        **dict.fromkeys("45", "test"),
    }


def test_tables__crowds_columns_of_parts_and_rows_without_a_box(tmp_path: Path):
    root = write_tables(tmp_path / "set", PIXELS, {})
    (root / "boxes.csv").write_text(
        "image,label,x_min,y_min,x_max,y_max,is_crowd,split\n"
        "0.png,a,1,2,30,40,1,training\n0.png,a,5,5,20,20,0,train\n1,b,1,1,9,9,0,Valid\n2,,,,,,,train\n"
    )
    described = read_boxes(root / "boxes.csv")[1]
    found = [(one.key, one.crowd, one.names, one.declared_split) for one in described.images]
    assert found == [
        ("images/0.png", [True, False], ["a", "a"], "train"),
        ("images/1.png", [False], ["b"], "val"),
        ("images/2.png", [], [], "train"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0.png,96,64,a,1,2,x,4", "line 3 of .* expected names and four numbers"),
        ("0.png,96,64,,1,2,3,4", "line 3 of .* expected names and four numbers"),
        ("0.png,96,64,a,1,2", "line 3 of .* has 6 cells, too few: correct the line"),
        ("0.png", "line 3 of .* has 1 cell, too few: correct the line"),
        ("9.png,96,64,a,1,2,3,4", "describes '9.png', but there is no such image"),
        (
            "0.png,96,64,a,0.1,0.2,0.3,0.4",
            "in line 3 and a box with .* in line 2: give all boxes in pixels, or all from 0 to 1",
        ),
    ],
)
def test_tables__refuse_what_cannot_be_meant(tmp_path: Path, line: str, words: str):
    root = write_tables(tmp_path / "set", PIXELS, {})
    (root / "boxes.csv").write_text(",".join(PIXELS) + "\n0.png,96,64,a,1,2,30,40\n" + line + "\n")
    with pytest.raises(UserError, match=words):
        read_boxes(root)


@pytest.mark.parametrize("header", ["image,label,x_min,ymin,xmax,ymax,xmin", "image,x,y,width,height,width,label"])
def test_tables__refuse_columns_of_one_name(tmp_path: Path, header: str):
    root = write_tables(tmp_path / "set", PIXELS, {})
    (root / "boxes.csv").write_text(f"{header}\n0.png,1,2,30,40,5,6\n")
    with pytest.raises(UserError, match=r"boxes\.csv has several columns called '(xmin|width)'; rename or remove"):
        read_boxes(root)


def test_tables__refuse_boxes_of_one_image_in_two_parts(tmp_path: Path):
    root = write_tables(tmp_path / "set", PIXELS, {})
    rows = ["0.png,a,1,2,30,40,train", "1.png,a,1,2,30,40,test", "0.png,a,5,5,20,20,test"]
    (root / "boxes.csv").write_text("\n".join(["image,label,xmin,ymin,xmax,ymax,split", *rows]))
    with pytest.raises(UserError, match=r"line 4 of .* puts '0\.png' into test, .* into train"):
        read_boxes(root)


def spans(row: tuple) -> str:
    left, top, right, bottom = row[1:]
    return f"{left},{top},{right - left},{bottom - top}"


# A header and the lines of a box, as tools and competitions write them, given the name of an image, its size and a row.
FORMS = {
    "x y w h": ("image,label,x,y,w,h", lambda n, size, row: f"{n}.png,{row[0]},{spans(row)}"),
    "corner and span": (
        "image_name,label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_width,image_height",
        lambda n, size, row: f"{n}.png,{row[0]},{spans(row)},{size[0]},{size[1]}",
    ),
    "width of the box": ("path,class,xmin,ymin,width,height", lambda n, size, row: f"{n}.png,{row[0]},{spans(row)}"),
    "list of spans": (
        "image_id,width,height,bbox,class",
        lambda n, size, row: f'{n},{size[0]},{size[1]},"[{spans(row)}]",{row[0]}',
    ),
    "list of edges": (
        "image_id,bbox,class",
        lambda n, size, row: f'{n},"({row[1]}.0 {row[2]}.0 {row[3]}.0 {row[4]}.0)",{row[0]}',
    ),
    "keras-retinanet": ("", lambda n, size, row: f"images/{n}.png,{row[1]},{row[2]},{row[3]},{row[4]},{row[0]}"),
    "makesense": ("", lambda n, size, row: f"{row[0]},{spans(row)},{n}.png,{size[0]},{size[1]}"),
    "automl": (
        "",
        lambda n, size, row: (
            f"TRAIN,gs://bucket/a/{n}.png,{row[0]},{row[1] / size[0]},{row[2] / size[1]},,,"
            f"{row[3] / size[0]},{row[4] / size[1]},,"
        ),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables__of_tools_and_competitions(tmp_path: Path, form: str):
    header, line = FORMS[form]
    root = write_tables(tmp_path / "set", PIXELS, {})
    lines = [header] if header else []
    lines += [line(n, image.size, row) for n, (image, rows) in enumerate(pictures(6)) for row in rows]
    (root / "boxes.csv").write_text("\n".join(lines) + "\n")
    described = read_boxes(root)[1]
    require_read(described)
    assert {one.declared_split for one in described.images} == ({"train"} if form == "automl" else {""})
    words = {
        "list of spans": "left, top, width, height, as in COCO JSON",
        "list of edges": "left, top, right, bottom",
    }
    assert described.notes == ((f"the boxes of boxes.csv are read as {words[form]}",) if form in words else ())


@pytest.mark.parametrize("shares", [False, True])
def test_tables__of_centres_are_refused(tmp_path: Path, shares: bool):
    root = write_tables(tmp_path / "set", PIXELS, {})
    lines = ["image,label,x,y,w,h"]
    for n, (image, rows) in enumerate(pictures(6)):
        sides = image.size if shares else (1, 1)
        for name, left, top, right, bottom in rows:
            spans = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            numbers = (value / side for value, side in zip(spans, sides * 2, strict=True))
            lines.append(",".join([f"{n}.png", name, *map(str, numbers)]))
    (root / "boxes.csv").write_text("\n".join(lines))
    with pytest.raises(
        UserError,
        match=r"seem to be the centres of the boxes: as corners, .* as centres they would put no box outside\.",
    ):
        read_boxes(root)


@pytest.mark.parametrize("form", ["x,y,w,h", "bbox"])
def test_tables__of_corners_need_the_headers_of_few_images(tmp_path: Path, monkeypatch, form: str):
    root = write_tables(tmp_path / "set", PIXELS, {})
    box = '"[40, 2, 30, 20]"' if form == "bbox" else "40,2,30,20"
    (root / "boxes.csv").write_text(f"image,label,{form}\n" + "".join(f"{n}.png,a,{box}\n" for n in range(6)))
    read_sizes, size = [], FileStore.size
    monkeypatch.setattr(FileStore, "size", lambda store, index: read_sizes.append(index) or size(store, index))
    described = read_boxes(root)[1]
    assert [image.boxes for image in described.images] == [[(40, 2, 70, 22)]] * 6
    assert read_sizes == [0]


def test_tables__without_classes_have_one(tmp_path: Path):
    root = write_tables(tmp_path / "set", PIXELS, {})
    (root / "train.csv").write_text("image_id,xmin,ymin,xmax,ymax,source\n0,1,2,30,40,x\n1,,,,,y\n")
    described = read_boxes(root)[1]
    assert [(one.names, one.boxes) for one in described.images] == [(["object"], [(1, 2, 30, 40)]), ([], [])]
    assert "train.csv has no column of classes, so all boxes have the class 'object'" in described.notes


@pytest.mark.parametrize("cell", ["[1, 2, 3]", "all of it", "[1, 2, 3, x]"])
def test_tables__refuse_lists_that_are_no_boxes(tmp_path: Path, cell: str):
    root = write_tables(tmp_path / "set", PIXELS, {})
    (root / "boxes.csv").write_text(f'image_id,bbox,class\n0,"[1, 2, 30, 40]",a\n1,"{cell}",a\n')
    with pytest.raises(UserError, match=r"line 3 of .* expected names and four numbers"):
        read_boxes(root)


def test_tables__a_quote_that_is_not_closed_is_refused_with_its_line(tmp_path: Path):
    root = write_labelme(tmp_path / "set")
    for file in root.glob("*.json"):
        file.unlink()
    rows = ["image,label,xmin,ymin,xmax,ymax", "0.png,a,1,2,30,40", '1.png,"b,1,2,30,40', "2.png,a,1,2,30,40"]
    (root / "boxes.csv").write_text("\n".join(rows) + "\n")
    for path in (root, root / "boxes.csv"):
        with pytest.raises(UserError, match=r"line 3 of .*boxes\.csv has a quote \(\"\) that is not closed"):
            read_boxes(path)
