"""`paucal convert`: what is written is read back equal, and what a layout cannot hold is said."""

import json
import os
import shutil
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.datasets
import yaml
from PIL import Image
from sklearn.datasets import load_digits

import paucal
from cli.calls import make_photos, make_scenes
from data.boxes.written import write_cvat, write_label_studio, write_yolo
from paucal.cli.main import main
from paucal.data.boxes.opening import read_boxes
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.images import open_boxed_images
from paucal.tasks.detection.masks import mask_of_outline, unpack_mask
from paucal.types import UserError
from paucal.verbs.convert.content import CROWDS, OUTLINES, UNKNOWN_LABELS, read_labelled_set, unique_names
from paucal.verbs.convert.settings import ConvertSettings
from paucal.verbs.convert.writing import LAYOUTS
from promises.boxes import LAYOUTS as MAKERS
from promises.boxes import Maker
from tasks.detection.made import write_voc

BOXES = ("yolo", "coco", "voc", "csv", "label-studio", "cvat")
NO_CROWDS, NO_OUTLINES = ("yolo", "label-studio", "cvat"), ("voc", "csv")


def described(place: Path) -> dict[str, tuple]:
    """Return the part, the size and the objects of each image, by a key that conversions keep: the pixels."""
    content = read_labelled_set(ConvertSettings(data=str(place), to="coco"), ("detect",), lambda done, total: None)
    found = {}
    for item in content.items:
        key = np.asarray(content.images.store.read(item.index)).tobytes()
        things = [(obj.name, obj.box, obj.crowd, obj.outline) for obj in item.objects]
        assert key not in found
        found[key] = (item.split, item.size, things)
    return found


def require_equal(first: dict, second: dict, to: str, no_parts: bool) -> None:
    assert first.keys() == second.keys()
    for key, (part, size, things) in first.items():
        other_part, other_size, others = second[key]
        assert size == other_size
        assert part == other_part or (no_parts and other_part in ("", "train"))
        kept = [thing for thing in things if not (thing[2] and to in NO_CROWDS)]
        assert [thing[0] for thing in kept] == [thing[0] for thing in others]
        assert [thing[2] for thing in kept] == [thing[2] for thing in others]
        for (_, box, _, outline), (_, other_box, _, other_outline) in zip(kept, others, strict=True):
            assert other_box == pytest.approx(box, abs=2e-3)
            if outline and to not in NO_OUTLINES:
                assert other_outline is not None
                most = np.resize(size[::-1], len(outline[0])) if to == "yolo" else np.inf
                expected = np.clip(outline[0], 0 if to == "yolo" else -np.inf, most)
                assert other_outline[0] == pytest.approx(expected.tolist(), abs=2e-3)
            if outline and to == "coco":
                assert other_outline == outline
            assert outline or not other_outline


@pytest.mark.parametrize("seed", range(2 * len(MAKERS)))
def test_boxes__of_random_sets_are_read_back_equal(tmp_path: Path, seed: int):
    root = tmp_path / "set"
    root.mkdir()
    made = MAKERS[seed % len(MAKERS)](Maker(root, seed))
    try:
        first = described(made.place)
    except UserError:
        pytest.skip("a set that nobody reads")
    no_parts = {part for part, _, _ in first.values()} == {""}
    for to in BOXES:
        result = paucal.convert(made.place, to=to, output=tmp_path / to)
        require_equal(first, described(tmp_path / to), to, no_parts)
        crowds = sum(thing[2] for _, _, things in first.values() for thing in things)
        outlines = sum(bool(thing[3]) for _, _, things in first.values() for thing in things)
        assert result.lost.get(CROWDS, 0) == (crowds if to in NO_CROWDS else 0)
        assert result.lost.get(OUTLINES, 0) == (outlines if to in NO_OUTLINES else 0)
        assert result.images == len(first)


def test_chains_of_conversions__end_where_they_began(tmp_path: Path):
    place = write_yolo(tmp_path / "set", outline=True)
    first = described(place)
    for to in ("coco", "label-studio", "cvat", "yolo", "coco"):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}-{to}"
        paucal.convert(place, to=to, output=out)
        place = out
    last = described(place)
    require_equal(first, last, "coco-like", no_parts=False)
    assert open_boxed_images(place).classes == open_boxed_images(tmp_path / "set").classes


def test_outlines__become_masks_as_the_detector_draws_them(tmp_path: Path):
    root = write_label_studio(tmp_path / "set", "polygon")
    paucal.convert(root, to="masks", output=tmp_path / "masks")
    pairs = find_pairs(tmp_path / "masks")
    masked = read_masks(images_of_pairs(pairs, "masks"), pairs)
    names = ["background", *read_boxes(root)[1].class_numbers]
    assert list(masked.images.classes) == names
    for number, image in enumerate(read_boxes(root)[1].images):
        size = masked.images.store.size(number)
        expected = np.zeros(size, dtype=np.uint8)
        drawn = [unpack_mask(mask_of_outline(outline, size, "")).astype(bool) for outline in image.outlines]
        for place in sorted(range(len(drawn)), key=lambda place: -int(drawn[place].sum())):
            expected[drawn[place]] = names.index(image.names[place])
        assert masked.masks.read(number).tolist() == expected.tolist()
    with pytest.raises(UserError, match="has no outline, but masks need the outline of each object"):
        paucal.convert(write_label_studio(tmp_path / "boxes"), to="masks", output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("to", ["yolo", "coco", "label-studio", "cvat", "masks"])
@pytest.mark.parametrize(
    ("polygon", "words"),
    [([1, 1, 5, 5], "a polygon of 2 points, expected 3 or more"), ([1, 1, 5, 1, 5], "a polygon of 5 coordinates")],
)
def test_outlines_that_are_none__are_refused_and_never_written_as_boxes(
    tmp_path: Path, to: str, polygon: list[int], words: str
):
    root = tmp_path / "set"
    root.mkdir()
    Image.new("RGB", (8, 8)).save(root / "0.png")
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "segmentation": [polygon]}
    content = {"images": [{"id": 1, "file_name": "0.png"}], "categories": [{"id": 1, "name": "a"}]}
    (root / "boxes.json").write_text(json.dumps({**content, "annotations": [box]}))
    with pytest.raises(UserError, match=words):
        paucal.convert(root, to=to, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    paucal.convert(root, to="voc", output=tmp_path / "voc")  # which has no outlines


def test_masks__of_more_classes_than_they_can_number_are_refused(tmp_path: Path):
    def written(n_classes: int) -> Path:
        root = tmp_path / str(n_classes)
        root.mkdir()
        Image.new("RGB", (8, 8)).save(root / "0.png")
        numbers = range(1, n_classes + 1)
        boxes = [
            {"id": n, "image_id": 1, "category_id": n, "bbox": [1, 1, 4, 4], "segmentation": [[1, 1, 5, 1, 5, 5]]}
            for n in numbers
        ]
        content = {"images": [{"id": 1, "file_name": "0.png"}], "annotations": boxes}
        content["categories"] = [{"id": n, "name": f"c{n:03d}"} for n in numbers]
        (root / "boxes.json").write_text(json.dumps(content))
        return root

    paucal.convert(written(254), to="masks", output=tmp_path / "out")
    assert np.asarray(Image.open(tmp_path / "out/masks/0.png")).max() == 254
    for n_classes in (255, 300):  # 255 means "not labelled"
        with pytest.raises(UserError, match=f"have {n_classes} classes, but masks can have at most 254"):
            paucal.convert(written(n_classes), to="masks", output=tmp_path / "none")


def test_masks__are_kept_as_numbers_and_become_areas_of_coco(tmp_path: Path):
    root = make_scenes(tmp_path / "set", 4)
    first = _masks(root)
    paucal.convert(root, to="masks", output=tmp_path / "masks")
    assert _masks(tmp_path / "masks") == first
    result = paucal.convert(root, to="coco", output=tmp_path / "coco")
    assert result.lost == {}
    names = list(paucal.check(root).checked.images.classes)
    for image in read_boxes(tmp_path / "coco")[1].images:
        mask = np.asarray(Image.open(root / "masks" / f"{Path(image.key).stem}.png"))
        for name, outline in zip(image.names, image.outlines, strict=True):
            flat = np.repeat(np.arange(len(outline["counts"])) % 2, outline["counts"])
            assert ((mask == names.index(name)) == flat.reshape(mask.shape[::-1]).T).all()


@pytest.mark.parametrize("to", ["coco", "label-studio", "cvat"])
def test_masks__go_to_programs_for_labels_and_come_back(tmp_path: Path, to: str):
    root = make_scenes(tmp_path / "set", 4)
    (root / "classes.txt").write_text('background\n"disc, round"\nbar <x>\n')
    first = _masks(root)
    result = paucal.convert(root, to=to, output=tmp_path / to)
    assert result.lost == {}
    assert result.said[-1].endswith(f"paucal convert {tmp_path / to} MASKS --to masks, and paucal segment MASKS")
    paucal.convert(tmp_path / to, to="masks", output=tmp_path / "back")
    names, *masks = _masks(tmp_path / "back")
    assert sorted(names) == sorted(first[0]) == ["background", "bar <x>", "disc, round"]
    number = np.asarray([first[0].index(name) for name in names])
    assert [number[np.asarray(mask)].tolist() for mask in masks] == first[1:]
    if to == "label-studio":
        config = (tmp_path / to / "label_config.xml").read_text()
        assert '<BrushLabels name="brush" toName="image"><Label value="background"/>' in config
        assert "RectangleLabels" not in config
    if to == "cvat":
        assert "<type>mask</type>" in (tmp_path / to / "annotations.xml").read_text()


def test_outlines_of_several_pieces__are_masks_in_programs_for_labels(tmp_path: Path):
    root = write_yolo(tmp_path / "set", outline=True)
    paucal.convert(root, to="coco", output=tmp_path / "coco")
    for file in (tmp_path / "coco/annotations").iterdir():
        content = json.loads(file.read_text())
        for one in content["annotations"]:
            left, top, width, height = one["bbox"]
            half, right, bottom = left + 4, left + width, top + height
            one["segmentation"] = [
                [left, top, half, top, half, bottom, left, bottom],
                [right - 4, top, right, top, right, bottom, right - 4, bottom],
            ]
        file.write_text(json.dumps(content))
    first = described(tmp_path / "coco")
    for to in ("label-studio", "cvat"):
        assert paucal.convert(tmp_path / "coco", to=to, output=tmp_path / to).lost == {}
        second = described(tmp_path / to)
        for key, (_, size, things) in first.items():
            for (name, box, _, outline), (other, near, _, runs) in zip(things, second[key][2], strict=True):
                drawn, back = (unpack_mask(mask_of_outline(one, size, "")) for one in (outline, runs))
                assert (drawn == back).all()
                assert 0 < drawn.sum() < (box[2] - box[0]) * (box[3] - box[1]) * 0.6
                assert name == other
                assert near == pytest.approx(box, abs=1)


@pytest.mark.parametrize("to", ["label-studio", "cvat"])
def test_outlines_smaller_than_a_pixel__become_boxes_in_programs_for_labels(tmp_path: Path, to: str):
    root = write_yolo(tmp_path / "set", outline=True)
    paucal.convert(root, to="coco", output=tmp_path / "coco")
    file = next((tmp_path / "coco/annotations").iterdir())
    content = json.loads(file.read_text())
    one = content["annotations"][0]
    one["segmentation"] = [[x, 5.1, x + 0.2, 5.1, x + 0.2, 5.3] for x in (8.1, 8.5)]
    one["bbox"] = [8.1, 5.1, 0.6, 0.2]
    file.write_text(json.dumps(content))
    paucal.convert(tmp_path / "coco", to=to, output=tmp_path / to)
    tiny = [
        (name, box)
        for _, _, things in described(tmp_path / to).values()
        for name, box, _, outline in things
        if outline is None
    ]
    names = {row["id"]: row["name"] for row in content["categories"]}
    assert tiny == [(names[one["category_id"]], pytest.approx((8.1, 5.1, 8.7, 5.3), abs=0.01))]


def _masks(root: Path) -> list[list]:
    pairs = find_pairs(root)
    masked = read_masks(images_of_pairs(pairs, str(root)), pairs)
    return [list(masked.images.classes), *(masked.masks.read(n).tolist() for n in range(len(masked.images)))]


@pytest.mark.parametrize("to", ["folders", "csv", "label-studio", "cvat"])
def test_classes__of_images_are_read_back_equal(tmp_path: Path, to: str):
    root = make_photos(tmp_path / "set")
    first = open_images(root)
    paucal.convert(root, to=to, output=tmp_path / "out")
    second = open_images(tmp_path / "out")
    assert second.classes == first.classes
    assert _labels(second) == _labels(first)
    assert set(second.declared_splits) == set(first.declared_splits)


def test_unreadable_images__are_refused_or_left_out_with_their_labels(tmp_path: Path):
    photos = make_photos(tmp_path / "photos", 2, 3)
    bad = sorted(photos.rglob("*.*"))[0]
    bad.write_bytes(b"damaged")
    with pytest.raises(UserError, match="skip it with --on-bad-image skip"):
        paucal.convert(photos, to="csv", output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    result = paucal.convert(photos, to="csv", output=tmp_path / "kept", on_bad_image="skip")
    assert (result.images, len(open_images(tmp_path / "kept"))) == (5, 5)
    note = f"note: 1 of 6 images cannot be read ({bad.parent.name}/{bad.name}); they were left out"
    assert note in result.said


@pytest.mark.parametrize("to", ["coco", "voc", "csv", "label-studio", "cvat"])
def test_objects_of_a_class_that_was_added_in_another_program__are_read(tmp_path: Path, to: str):
    write_voc(tmp_path / "set", 4)
    paucal.convert(tmp_path / "set", to=to, output=tmp_path / "out")
    file = next(
        one
        for one in sorted((tmp_path / "out").rglob("*"))
        if one.suffix in (".json", ".xml", ".csv") and one.name != "label_config.xml" and "red" in one.read_text()
    )
    text = file.read_text()
    if to == "coco":
        document = json.loads(text)
        document["categories"].append({"id": 9, "name": "green"})
        document["annotations"][0]["category_id"] = 9
        text = json.dumps(document)
    else:
        text = text.replace('label="red"' if to == "cvat" else "red", 'label="green"' if to == "cvat" else "green", 1)
    file.write_text(text)
    _, annotations = read_boxes(tmp_path / "out")
    names = [name for image in annotations.images for name in image.names]
    assert (names.count("green"), set(names)) == (1, {"green", "red"})


def test_objects_of_a_class_without_a_name__are_refused_with_the_line(tmp_path: Path):
    write_voc(tmp_path / "set", 4)
    paucal.convert(tmp_path / "set", to="yolo", output=tmp_path / "out")
    file = tmp_path / "out/labels/0.txt"
    file.write_text("7" + file.read_text()[1:])
    with pytest.raises(UserError, match=r"line 1 of .* has the class 7, but .*data.yaml names 1 .*: add the class"):
        read_boxes(tmp_path / "out")


def _labels(images) -> dict[bytes, list[str]]:
    return {np.asarray(images.store.read(n)).tobytes(): images.classes_of(n) for n in range(len(images))}


def test_several_labels_and_built_in_images(tmp_path: Path, monkeypatch):
    for n in range(4):
        Image.fromarray(np.full((8, 8, 3), 40 * n, np.uint8)).save(tmp_path / f"{n}.png")
    (tmp_path / "labels.csv").write_text("image,label\n0.png,a;b\n1.png,a\n2.png,\n3.png,b\n")
    first = open_images(tmp_path / "labels.csv")
    for to in ("csv", "label-studio", "cvat"):
        out = tmp_path.parent / f"{tmp_path.name}-{to}"
        paucal.convert(tmp_path / "labels.csv", to=to, output=out)
        assert _labels(open_images(out)) == _labels(first)
    with pytest.raises(UserError, match=r"'0\.png' has 2 classes, but folders need one class"):
        paucal.convert(tmp_path / "labels.csv", to="folders", output=tmp_path.parent / "never")
    few = load_digits()
    few.images, few.target = few.images[:75], few.target[:75]
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: few)
    digits = paucal.convert("digits", to="folders", output=tmp_path.parent / f"{tmp_path.name}-digits")
    assert open_images(digits.folder).class_counts().tolist() == np.bincount(few.target).tolist()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are Unicode")
@pytest.mark.parametrize("to", ["csv", "folders", "label-studio", "cvat"])
def test_names_that_are_not_utf8__are_written_as_text(tmp_path: Path, to: str):
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(2):
            file = os.fsencode(tmp_path / "set" / name) + f"/{number}".encode() + b"caf\xe9.png"
            Image.new("RGB", (8, 8), (9 * number,) * 3).save(os.fsdecode(file))
    paucal.convert(tmp_path / "set", to=to, output=tmp_path / "out")
    images = open_images(tmp_path / "out")
    assert sorted(images.class_counts().tolist()) == [2, 2]
    assert all("café" in key for key in images.keys)


@pytest.mark.parametrize(
    ("to", "lost"), [("csv", {}), ("label-studio", {UNKNOWN_LABELS: 2}), ("cvat", {UNKNOWN_LABELS: 2})]
)
def test_unknown_labels__are_kept_or_said_to_be_lost(tmp_path: Path, to: str, lost: dict[str, int]):
    for number in range(4):
        Image.new("RGB", (8, 8), (9 * number,) * 3).save(tmp_path / f"{number}.png")
    (tmp_path / "set.csv").write_text("image,a,b\n0.png,1,0\n1.png,1,1\n2.png,,1\n3.png,0,-1\n")
    assert paucal.convert(tmp_path / "set.csv", to=to, output=tmp_path / "out").lost == lost


def test_names__are_unique_without_their_endings():
    assert unique_names(["a/1.jpg", "b/1.jpg", "c/1.png", "d/2.png"]) == ["a__1.jpg", "b__1.jpg", "c__1.png", "2.png"]
    assert len(set(unique_names(["a.jpg", "a.png", "A.bmp"]))) == 3
    stems = [Path(name).stem.lower() for name in unique_names(["a/b.jpg", "a__b.jpg", "x/a__b.png", "a.jpg", "a.png"])]
    assert len(set(stems)) == 5


def test_the_command__says_what_is_lost_and_refuses_what_the_layout_cannot_hold(tmp_path: Path, capsys):
    root = write_yolo(tmp_path / "set", outline=True)
    assert main(["convert", str(root), str(tmp_path / "voc"), "--to", "voc"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    count = sum(len(image.boxes) for image in read_boxes(root)[1].images)
    assert f"lost: {OUTLINES}: {count}" in said
    assert "6 images as voc in" in said
    for arguments, words in (
        ([str(root), str(tmp_path / "a"), "--to", "folders"], "but --to folders takes classes of images"),
        ([str(root), str(tmp_path / "voc"), "--to", "coco"], "is not empty"),
        ([str(root), str(root / "out"), "--to", "coco"], "is inside the images"),
        ([str(root), str(tmp_path / "a")], "--to is missing: give the layout to write, one of yolo, coco"),
        ([str(tmp_path / "none"), str(tmp_path / "a"), "--to", "csv"], "does not exist"),
        ([str(make_scenes(tmp_path / "scenes", 3)), str(tmp_path / "a"), "--to", "yolo"], "--to yolo takes boxes"),
    ):
        assert main(["convert", *arguments]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "a").exists()
    assert not list(tmp_path.glob(".*"))


def test_every_layout__has_an_entry_and_keeps_the_bytes_of_images(tmp_path: Path):
    assert set(LAYOUTS) == {*BOXES, "masks", "folders"}
    root = write_yolo(tmp_path / "set")
    for to in BOXES:
        paucal.convert(root, to=to, output=tmp_path / to)
        written = sorted(path.read_bytes() for path in (tmp_path / to).rglob("*.png"))
        assert written == sorted(path.read_bytes() for path in root.rglob("*.png"))
        shutil.rmtree(tmp_path / to)


def test_rows_of_a_table__become_files_named_by_their_content(tmp_path: Path):
    rows = []
    for number, form in enumerate(("JPEG", "PNG", "WEBP")):
        content = BytesIO()
        Image.new("RGB", (16, 12), (80 * number, 40, 40)).save(content, form)
        rows.append(content.getvalue())
    pq.write_table(pa.table({"image": rows, "label": ["a", "b", "a"]}), tmp_path / "rows.parquet")
    result = paucal.convert(tmp_path / "rows.parquet", to="folders", output=tmp_path / "out")
    files = {file.relative_to(tmp_path / "out").as_posix(): file for file in Path(result.folder).rglob("*.*")}
    assert sorted(files) == ["a/rows.parquet-0.jpg", "a/rows.parquet-2.webp", "b/rows.parquet-1.png"]
    assert [files[name].read_bytes() for name in ("a/rows.parquet-0.jpg", "b/rows.parquet-1.png")] == rows[:2]


def test_boxes_without_an_area__are_said_to_be_lost(tmp_path: Path):
    root = write_yolo(tmp_path / "set")
    label = next((root / "labels").rglob("*.txt"))
    label.write_text(label.read_text() + "0 0.5 0.5 0 0\n")
    result = paucal.convert(root, to="coco", output=tmp_path / "coco")
    assert result.lost == {"boxes without an area": 1}
    assert "nothing is lost." not in result.said


def test_labels_of_whole_images_beside_boxes__are_said_to_be_lost(tmp_path: Path):
    root = write_cvat(tmp_path / "set")  # each of its six images has a tag
    assert paucal.convert(root, to="coco", output=tmp_path / "out").lost == {"labels of whole images": 6}


def test_yolo__names_its_only_part_twice_where_a_set_has_none(tmp_path: Path):
    """Other programs ask for both, and the part is read as one."""
    first = described(write_cvat(tmp_path / "set"))
    result = paucal.convert(tmp_path / "set", to="yolo", output=tmp_path / "yolo")
    config = yaml.safe_load((tmp_path / "yolo" / "data.yaml").read_text())
    assert config["train"] == config["val"] == "images"
    assert result.lost == {"labels of whole images": 6}
    assert {part for part, _, _ in described(tmp_path / "yolo").values()} == {"train"}
    assert len(first) == 6


def test_label_studio__gets_addresses_that_a_browser_follows(tmp_path: Path):
    root = write_yolo(tmp_path / "set", "images", "labels")
    (root / "images/0.png").rename(root / "images/a b#1.png")
    (root / "labels/0.txt").rename(root / "labels/a b#1.txt")
    paucal.convert(root, to="label-studio", output=tmp_path / "out")
    addresses = [row["data"]["image"] for row in json.loads((tmp_path / "out/tasks.json").read_text())]
    assert "/data/local-files/?d=images/a%20b%231.png" in addresses
    assert described(tmp_path / "out").keys() == described(root).keys()


def test_yolo__names_its_folders_beside_its_own_file(tmp_path: Path):
    paucal.convert(write_yolo(tmp_path / "set"), to="yolo", output=tmp_path / "yolo")
    config = yaml.safe_load((tmp_path / "yolo" / "data.yaml").read_text())
    assert "path" not in config  # other programs would look for "." in a folder of all their sets
    assert all((tmp_path / "yolo" / config[part]).is_dir() for part in config.keys() - {"names"})
