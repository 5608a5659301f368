"""Files as programs for labelling export them today, with the names, the litter and the quirks of each.

Forms: the exports in the tests of Label Studio's SDK (`tests/custom/converter`), CVAT's documentation of its formats
and of its XML, Roboflow's and FiftyOne's exports of COCO and YOLO.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paucal.data.boxes.annotations import AnnotatedImage
from paucal.data.boxes.label_studio import decode_brush, encode_brush
from paucal.data.boxes.opening import read_boxes
from paucal.data.label_kinds import describe_labels
from paucal.data.sources.opening import open_images
from paucal.types import UserError

SIZE = (64, 48)
PLACE = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0}
BOX = (6.4, 9.6, 25.6, 28.8)  # PLACE in pixels


def photos(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE, (90, 90, 90)).save(root / name)
    return root


def write(root: Path, **files: Any) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def objects(place: Path) -> dict[str, AnnotatedImage]:
    return {image.key: image for image in read_boxes(place)[1].images}


def result(kind: str, value: dict[str, Any], number: str = "djbpw94CXj") -> dict[str, Any]:
    stated = {"origin": "manual", "to_name": "image", "from_name": "label", "image_rotation": 0}
    sizes = {"original_width": SIZE[0], "original_height": SIZE[1]}
    return {"id": number, "type": kind, "value": value, **stated, **sizes}


def task(upload: str, results: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    annotation = {
        **{"id": 211797, "completed_by": 1, "result": results, "was_cancelled": False, "ground_truth": False},
        **{"lead_time": 19.2, "prediction": {}, "result_count": 0, "parent_prediction": None, **more},
    }
    return {
        **{"id": 68501, "annotations": [annotation], "file_upload": upload, "drafts": [], "predictions": []},
        **{"data": {"image": f"/data/upload/1/{upload}"}, "meta": {}, "inner_id": 1, "comment_authors": []},
    }


def test_label_studio__json_of_uploads_with_all_that_people_leave(tmp_path: Path) -> None:
    plane = {**PLACE, "rectanglelabels": ["Airplane"]}
    rows = [
        task("e97d4735-a_b.jpg", [result("rectanglelabels", plane)]),
        # <Rectangle> and <Labels> as controls of their own give two results of one id.
        task("12345678-c.jpg", [result("rectangle", PLACE, "p"), result("labels", {**PLACE, "labels": ["Ä, x"]}, "p")]),
        # A choice of one region.
        task("abcdef01-d.jpg", [result("rectanglelabels", plane), result("choices", {**PLACE, "choices": ["doubt"]})]),
        task("abcdef02-e.jpg", []),
        task("abcdef03-f.jpg", [], was_cancelled=True),
        {**task("abcdef04-g.jpg", []), "annotations": [], "predictions": [{"result": [result("x", plane)]}]},
        {**task("abcdef05-h.jpg", [result("rectanglelabels", plane)]), "data": {"image": "/image2"}},
    ]
    root = photos(tmp_path / "set", *(f"{name}.jpg" for name in ("a_b", *"cdefgh")))
    write(root, **{"project-1-at-2026-01-02-10-00-abcdef12.json": rows})
    found = objects(root)
    assert {key: image.names for key, image in found.items()} == {
        **{"a_b.jpg": ["Airplane"], "c.jpg": ["Ä, x"], "d.jpg": ["Airplane"], "e.jpg": [], "h.jpg": ["Airplane"]}
    }
    assert all(box == pytest.approx(BOX) for image in found.values() for box in image.boxes)
    assert not any(image.tags for image in found.values())
    assert "2 images without an annotation left out" in read_boxes(root)[1].notes
    assert "1 shape without a box was not read: choices 1" in read_boxes(root)[1].notes


def test_label_studio__whose_images_are_gone_is_refused_by_name(tmp_path: Path) -> None:
    rows = [task(f"e97d473{n}-{n} ä.jpg", [result("labels", {**PLACE, "labels": ["x"]})]) for n in range(3)]
    root = photos(tmp_path / "set", "0 ä.jpg", "2 ä.jpg")
    write(root, **{"export.json": rows})
    words = r"describes '/data/upload/1/e97d4731-1 ä\.jpg', but there is no such image in .*: add the image"
    with pytest.raises(UserError, match=words):
        read_boxes(root)
    assert describe_labels(root) == {"detect": "boxes (export.json) as Label Studio JSON"}


def test_label_studio__csv_has_choices_and_no_boxes(tmp_path: Path) -> None:
    head = "annotation_id,annotator,choice,created_at,id,image,lead_time,updated_at\n"
    rows = "1,1,cat,x,1,/data/upload/1/e97d4735-a.jpg,3.2,x\n2,1,dog,x,2,/data/local-files/?d=set/b%20%C3%A4.jpg,1,x\n"
    root = photos(tmp_path / "set", "a.jpg", "set/b ä.jpg")
    write(root, **{"project-1-at-2026.csv": head + rows})
    images = open_images(root)
    assert [(key, images.classes_of(n)) for n, key in enumerate(images.keys)] == [
        ("a.jpg", ["cat"]),
        ("set/b ä.jpg", ["dog"]),
    ]
    boxes = json.dumps([{**PLACE, "rectanglelabels": ["cat"]}]).replace('"', '""')
    write(root, **{"project-1-at-2026.csv": f'id,image,label\n1,/data/upload/1/e97d4735-a.jpg,"{boxes}"\n'})
    with pytest.raises(UserError, match=r"has boxes \(project-1-at-2026\.csv\) as Label Studio CSV annotations"):
        open_images(root)


def coco(names: list[str], **more: Any) -> dict[str, Any]:
    rows = [{"width": SIZE[0], "height": SIZE[1], "id": n, "file_name": name, **more} for n, name in enumerate(names)]
    box: dict[str, Any] = {"segmentation": [], "bbox": [1.5, 2, 20, 21], "ignore": 0, "iscrowd": 0, "area": 420}
    boxes = [{"id": n, "image_id": n, "category_id": 1, **box} for n in range(len(names))]
    categories = [{"id": 0, "name": "all", "supercategory": "none"}, {"id": 1, "name": "cat", "supercategory": "all"}]
    return {"info": {"year": 2026}, "licenses": [], "images": rows, "categories": categories, "annotations": boxes}


def yolo(root: Path, images: str, labels: str) -> None:
    photos(root, images)
    write(root, **{labels: "1 0.3 0.5 0.1 0.3\n"})


def label_studio_coco(root: Path) -> list[str]:
    write(root, **{"result.json": coco(["images/e97d4735-a.jpg", "images\\e97d4736-b b.jpg"])})
    photos(root, "a.jpg", "b b.jpg")
    return ["a.jpg", "b b.jpg"]


def label_studio_yolo(root: Path) -> list[str]:
    write(root, **{"classes.txt": "dog\ncat\n", "notes.json": {"categories": [{"id": 0, "name": "dog"}], "info": {}}})
    yolo(root, "images/e97d4735-a.jpg", "labels/e97d4735-a.txt")
    yolo(root, "images/b.jpg", "labels/e97d4736-b.txt")  # exported without images
    return ["images/b.jpg", "images/e97d4735-a.jpg"]


def cvat_coco(root: Path) -> list[str]:
    content = coco(["sub dir/ä, b.jpg"], license=0, flickr_url="", coco_url="", date_captured=0)
    write(root, **{"annotations/instances_default.json": content})
    photos(root, "images/default/sub dir/ä, b.jpg")
    return ["images/default/sub dir/ä, b.jpg"]


def cvat_yolo(root: Path) -> list[str]:
    write(
        root, **{"obj.names": "dog\ncat\n", "obj.data": "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n"}
    )
    write(root, **{"train.txt": "data/obj_train_data/a b.jpg\n"})
    yolo(root, "obj_train_data/a b.jpg", "obj_train_data/a b.txt")
    return ["obj_train_data/a b.jpg"]


def cvat_ultralytics(root: Path) -> list[str]:
    names = "names:\n  0: dog\n  1: cat\n"
    write(root, **{"data.yaml": f"path: .\ntrain: train.txt\nval: validation.txt\n{names}"})
    for part in ("train", "validation"):
        write(root, **{f"{part}.txt": f"data/images/{part}/{part} ß.jpg\n"})
        yolo(root, f"images/{part}/{part} ß.jpg", f"labels/{part}/{part} ß.txt")
    return ["images/train/train ß.jpg", "images/validation/validation ß.jpg"]


def cvat_labelme(root: Path) -> list[str]:
    corners = "".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in ((3, 4), (30, 4), (30, 20), (3, 20)))
    one = "<object><name>cat</name><deleted>{}</deleted><type>bounding_box</type><polygon>{}</polygon></object>"
    size = "<imagesize><nrows>48</nrows><ncols>64</ncols></imagesize>"
    text = f"<annotation><filename>a.jpg</filename>{size}{one.format(0, corners)}{one.format(1, corners)}</annotation>"
    write(root, **{"default/a.xml": text})
    photos(root, "default/a.jpg")
    return ["default/a.jpg"]


def roboflow_coco(root: Path) -> list[str]:
    for part in ("train", "valid", "test"):
        name = f"{part}_jpg.rf.6f0c.jpg"
        write(root, **{f"{part}/_annotations.coco.json": coco([name], license=1, extra={"name": "x.jpg"})})
        photos(root, f"{part}/{name}")
    write(root, **{"README.roboflow.txt": "x", "README.dataset.txt": "x"})
    return [f"{part}/{part}_jpg.rf.6f0c.jpg" for part in ("test", "train", "valid")]


def fiftyone_coco(root: Path) -> list[str]:
    write(root, **{"labels.json": coco(["a.jpg"], license=None, coco_url=None)})
    photos(root, "data/a.jpg")
    return ["data/a.jpg"]


def fiftyone_yolo(root: Path) -> list[str]:
    parts = {part: f"./images/{part}/" for part in ("train", "val")}
    lines = "".join(f"{part}: {place}\n" for part, place in parts.items())
    write(root, **{"dataset.yaml": f"names:\n  0: dog\n  1: cat\npath: .\n{lines}"})
    for part in parts:
        yolo(root, f"images/{part}/{part}.jpg", f"labels/{part}/{part}.txt")
    return ["images/train/train.jpg", "images/val/val.jpg"]


EXPORTS: tuple[Callable[[Path], list[str]], ...] = (
    *(label_studio_coco, label_studio_yolo, cvat_coco, cvat_yolo, cvat_ultralytics, cvat_labelme),
    *(roboflow_coco, fiftyone_coco, fiftyone_yolo),
)


@pytest.mark.parametrize("export", EXPORTS)
def test_exports__are_recognised_and_read(tmp_path: Path, export: Callable[[Path], list[str]]) -> None:
    root = tmp_path / "set"
    keys = export(root)
    assert list(describe_labels(root)) == ["detect"]
    found = objects(root)
    assert sorted(found) == keys
    expected = {"yolo": (16, 16.8, 22.4, 31.2), "coco": (1.5, 2, 21.5, 23), "labelme": (3, 4, 30, 20)}
    box = next(place for kind, place in expected.items() if kind in export.__name__.replace("ultralytics", "yolo"))
    for image in found.values():
        assert image.names == ["cat"]
        assert image.boxes == [pytest.approx(box)]


CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><project><id>4</id><labels><label><name>wheel</name><color>#33ddff</color><type>any</type></label></labels>
  <subsets>train
validation</subsets></project><dumped>2026-01-01 10:00:00.1+00:00</dumped></meta>
  <image id="0" name="a b.jpg" subset="train" task_id="1" width="64" height="48">
    <box label="red, &quot;x&quot; &amp; y" source="manual" occluded="0" xtl="3.00" ytl="4.00" xbr="30.50" ybr="40.00">
      <attribute name="side">left</attribute>
    </box>
    <mask label="wheel" source="semi-auto" occluded="0" rle="3, 5, 7, 7, 5, 9, 3, 11, 2, 11, 2, 12, 1, 12, 1, 26, 1, \
12, 1, 12, 2, 11, 3, 9, 5, 7, 7, 5, 3" left="7" top="8" width="13" height="15" z_order="0"></mask>
    <polyline label="line" points="1,2;3,4" occluded="0" z_order="3"></polyline>
    <tag label="good_frame" source="manual"></tag>
    <skeleton label="s1" source="manual"><points label="1" outside="0" points="5,9"></points></skeleton>
  </image>
  <image id="1" name="a b.jpg" subset="validation" task_id="2" width="64" height="48">
    <ellipse label="wheel" source="manual" occluded="0" cx="20.0" cy="20.0" rx="5.0" ry="6.0" z_order="0"></ellipse>
  </image>
</annotations>"""


def test_cvat__project_has_the_same_name_in_two_subsets(tmp_path: Path) -> None:
    root = photos(tmp_path / "set", "images/train/a b.jpg", "images/validation/a b.jpg")
    write(root, **{"annotations.xml": CVAT})
    found = objects(root)
    first, second = found["images/train/a b.jpg"], found["images/validation/a b.jpg"]
    assert (first.names, first.declared_split) == (['red, "x" & y', "wheel"], "train")
    assert first.boxes == [(3, 4, 30.5, 40), (7, 8, 20, 23)]
    assert sum(first.outlines[1]["counts"][1::2]) == 195 - 46
    assert (second.names, second.boxes, second.declared_split) == (["wheel"], [(15, 14, 25, 26)], "val")
    assert first.tags == ["good_frame"]
    flat = photos(tmp_path / "flat", "images/a b.jpg")
    write(flat, **{"annotations.xml": CVAT.partition('  <image id="1"')[0] + "</annotations>"})
    assert list(objects(flat)) == ["images/a b.jpg"]


def test_brushes__are_packed_as_label_studio_packs_them() -> None:
    # Its own example: the head states 32 bits of length, 8 bits of a value, and counts of 3, 4, 8 and 16 bits.
    head = [57, 27, 252]
    for seed, size in enumerate(((1, 1), (7, 13), (40, 300), (300, 400))):
        random = np.random.default_rng(seed)
        mask = np.repeat(random.random((size[0], 1)) > 0.5, size[1], axis=1) ^ (random.random(size) > 0.98)
        packed = encode_brush(mask)
        assert packed[:4] == list((4 * mask.size).to_bytes(4))
        assert packed[4:6] == head[:2]
        assert packed[6] >> 3 == head[2] >> 3
        assert (decode_brush(packed, size) == mask).all()
    full = np.ones((300, 400), dtype=bool)
    assert len(encode_brush(full)) < 40  # runs of the longest count
    assert decode_brush(encode_brush(full), full.shape).all()
