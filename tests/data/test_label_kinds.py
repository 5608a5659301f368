"""What is recognised in a place, and what each verb says of labels that another verb learns."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import paucal
from cli.calls import failure, make_photos, make_scenes
from data.boxes.written import PIXELS, SHARES, write_tables, write_yolo
from paucal.cli.main import main
from paucal.data.label_kinds import LABEL_KINDS, describe_labels
from paucal.data.masks.pairs import find_pairs
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError

MAKERS = {"train": make_photos, "detect": write_yolo, "segment": make_scenes}
SEEN = {
    "train": r"class folders \(",
    "detect": r"boxes \(.*\) as YOLO text files",
    "segment": r"\d+ masks \('masks/00\.png' of 'images/00\.png'\)",
}
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("kind", MAKERS)
def test_each_kind_of_labels__is_recognised_alone(tmp_path: Path, kind: str):
    seen = describe_labels(MAKERS[kind](tmp_path / "set"))
    assert list(seen) == [kind]
    assert re.match(SEEN[kind], seen[kind])


@pytest.mark.parametrize("kind", MAKERS)
def test_each_verb__names_the_verb_for_labels_of_another_kind(tmp_path: Path, capsys, kind: str):
    root = MAKERS[kind](tmp_path / "set")
    for other in LABEL_KINDS:
        if other.verb == kind:
            continue
        assert main([other.verb, str(root), "--output", str(tmp_path / "run")]) == 2
        words = " ".join(capsys.readouterr().err.split())
        noun = next(one.noun for one in LABEL_KINDS if one.verb == kind)
        assert re.search(rf"{SEEN[kind]}.*, and no {other.noun}: `paucal {kind}` learns {noun}", words)
        assert not (tmp_path / "run").exists()


def test_boxes_and_masks_of_one_set__are_both_named(tmp_path: Path):
    root = make_scenes(tmp_path / "set", 4)
    lines = ["filename,class,xmin,ymin,xmax,ymax", *(f"{n:02}.png,cell,1,2,9,8" for n in range(4))]
    (root / "boxes.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"boxes .* and 4 masks .*: `paucal detect` learns boxes, `paucal segment`"):
        open_images(root)
    found = paucal.check(root)
    told = {one.name: one.text for one in found.findings}
    assert told["masks"] == "4 images with masks: this is data for paucal segment"
    assert told["also-boxes"] == "there are also boxes (boxes.csv) as a CSV of boxes: check these with --verb detect"
    detected = paucal.check(root, verb="detect")
    assert {one.name: one.text for one in detected.findings}["boxes"].startswith("4 images with 4 boxes of 1 class")
    assert paucal.check(root, verb="train").misleads


def test_check__with_a_verb_says_what_this_verb_would_say(tmp_path: Path):
    photos, scenes = make_photos(tmp_path / "photos"), make_scenes(tmp_path / "scenes")
    for root, verb, name in ((photos, "detect", "bad-boxes"), (photos, "segment", "bad-masks")):
        found = paucal.check(root, verb=verb)
        assert found.misleads
        assert "`paucal train` learns classes of images" in next(
            one.text for one in found.findings if one.name == name
        ) + " ".join(one.advice for one in found.findings)
    assert not paucal.check(scenes, verb="segment").misleads


def test_folders_of_images_and_labels_without_labels__are_no_classes(tmp_path: Path):
    for n in range(3):
        photograph(tmp_path / f"images/{n}.png")
    (tmp_path / "labels").mkdir()
    words = r"has images/ \(3 \.png\), labels/ \(empty\), which are not classes, and no boxes or masks were "
    with pytest.raises(UserError, match=rf"{words}recognised: .*reads masks .* --images and --masks"):
        open_images(tmp_path)
    (tmp_path / "labels/a.txt").write_text("hello")
    with pytest.raises(UserError, match=r"labels/ \(1 \.txt\), which are not classes"):
        open_images(tmp_path)
    (tmp_path / "labels/a.txt").unlink()
    photograph(tmp_path / "labels/7.png")
    photograph(tmp_path / "labels/8.png")
    with pytest.raises(UserError, match=r"and no classes of images"):
        open_images(tmp_path)


def test_boxes_in_an_archive__are_named_with_their_verb(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PAUCAL_IMAGE_CACHE", str(tmp_path / "cache"))
    boxes = write_yolo(tmp_path / "boxes")
    with zipfile.ZipFile(tmp_path / "boxes.zip", "w") as archive:
        for path in sorted(boxes.rglob("*.*")):
            archive.write(path, path.relative_to(boxes))
    assert main(["segment", str(tmp_path / "boxes.zip"), "--output", str(tmp_path / "run")]) == 2
    assert "boxes as YOLO text files, and no masks: `paucal detect`" in " ".join(capsys.readouterr().err.split())


def photograph(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)


def test_two_folders_with_files_of_the_same_names__may_be_photographs_and_masks(tmp_path: Path):
    for n in range(3):
        photograph(tmp_path / f"x/{n}.png")
        photograph(tmp_path / f"y/{n}.png")
    assert open_images(tmp_path).classes == ("x", "y")
    for n in range(3):
        Image.fromarray(np.eye(24, dtype=np.uint8)[:20] * 255).save(tmp_path / f"y/{n}.png")
    words = r"has 3 masks \('y/0\.png' of 'x/0\.png'\), and no"
    with pytest.raises(UserError, match=rf"{words} classes of images: `paucal segment` learns masks"):
        open_images(tmp_path)
    with pytest.raises(UserError, match=rf"{words} boxes: `paucal segment` learns masks"):
        open_boxed_images(tmp_path)
    assert open_images(tmp_path, labelled=False).keys == ["x/0.png", "x/1.png", "x/2.png"]
    pairs = find_pairs(tmp_path)
    assert [(pair.key, pair.masks) for pair in pairs.pairs] == [
        (f"{n}.png", (tmp_path / f"y/{n}.png",)) for n in range(3)
    ]
    assert pairs.notes[0] == "the files of y have few colours, and are used as masks of the images in x"


def test_a_table_of_boxes__is_no_table_of_marks(tmp_path: Path):
    root = write_tables(tmp_path / "set", SHARES, {"boxes.csv": range(6)})
    with pytest.raises(UserError, match=r"has boxes \(boxes\.csv\) as a CSV of boxes, and no classes of images"):
        open_images(root)
    lines = [
        "filename,file_size,region_count,region_id,region_shape_attributes",
        *(f"{n}.png,1,1,0,{{}}" for n in range(6)),
    ]
    (root / "boxes.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"has boxes \(boxes\.csv\) as VGG Image Annotator"):
        open_images(root)
    table = write_tables(tmp_path / "table", PIXELS, {"boxes.csv": range(6)}) / "boxes.csv"
    assert len(open_boxed_images(table).images) == 6


def test_classes_and_boxes_of_one_set__are_both_named(tmp_path: Path):
    root = make_photos(tmp_path / "set")
    lines = ["filename,class,xmin,ymin,xmax,ymax", *(f"class{n}/{n}.png,cell,1,2,9,8" for n in range(3))]
    (root / "boxes.csv").write_text("\n".join(lines))
    note = "there are also boxes (boxes.csv) as a CSV of boxes: `paucal detect` learns boxes"
    assert note in open_images(root).notes
    assert note not in open_images(make_photos(tmp_path / "other")).notes
    told = {one.name: one.text for one in paucal.check(root).findings}
    assert told["also-classes"] == (
        "there are also class folders (class0, class1, class2): check these with --verb train"
    )


def test_folders_of_parts__are_no_classes_in_an_archive_either(tmp_path: Path):
    root = write_yolo(tmp_path / "set", "{}2017", "{}2017")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in sorted(root.rglob("*.*")):
            archive.write(path, path.relative_to(root))
    for place in (root, tmp_path / "set.zip"):
        assert list(describe_labels(place)) == ["detect"]
        with pytest.raises(UserError, match=r"as YOLO text files, and no classes of images"):
            open_images(place)


def test_tables_parquet_and_shards__are_classes_to_verbs_for_boxes_and_masks(tmp_path: Path):
    photos = make_photos(tmp_path / "photos")
    paucal.shard(photos, output=str(tmp_path / "shards"))
    paucal.shard(photos, output=str(tmp_path / "parquet"), format="parquet")
    table = photos / "labels.csv"
    table.write_text("image_path,label\nclass0/0.png,a\nclass1/1.png,b\n")
    for place, words in (
        (tmp_path / "shards", "images in shards"),
        (tmp_path / "parquet", "images in Parquet files"),
        (table, "a table of classes"),
    ):
        assert describe_labels(place) == {"train": words}
        with pytest.raises(UserError, match=rf"has {words}, and no boxes: `paucal train` learns classes of images"):
            open_boxed_images(place)


def test_shard__says_how_images_with_boxes_are_written(tmp_path: Path, capsys):
    boxes = write_yolo(tmp_path / "boxes")
    words = failure(capsys, "shard", boxes, tmp_path / "out")
    assert "as YOLO text files, but shards can only contain images with classes: --unlabelled writes images" in words
    assert paucal.shard(boxes, output=str(tmp_path / "out"), unlabelled=True).images == 6
