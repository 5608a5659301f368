"""Pascal VOC XML: folders and endings, encodings, which image a file is of, difficult objects and turned boxes."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from paucal.data.boxes.opening import read_boxes
from paucal.types import UserError
from tasks.detection.made import pictures, write_voc, write_xml


def boxes_by_stem(root: Path) -> dict[str, list]:
    return {Path(one.key).stem: one.boxes for one in read_boxes(root)[1].images}


EXPECTED = {str(n): [row[1:] for row in rows] for n, (_, rows) in enumerate(pictures(6))}


@pytest.mark.parametrize("images", ["JPEGImages", "images", "Images", "jpegimages", "PNG", "."])
@pytest.mark.parametrize("folder", ["Annotations", "annotations", "xmls", "."])
@pytest.mark.parametrize("ending", [".xml", ".XML"])
def test_folders_and_endings__in_all_spellings(tmp_path: Path, images: str, folder: str, ending: str):
    root = tmp_path / "set"
    for n, (image, rows) in enumerate(pictures(6)):
        (root / images).mkdir(parents=True, exist_ok=True)
        (root / folder).mkdir(parents=True, exist_ok=True)
        image.save(root / images / f"{n}.png")
        write_xml(root / folder / f"{n}{ending}", f"{n}.png", image.size, rows)
    assert boxes_by_stem(root) == EXPECTED


def test_hidden_files__are_passed_over(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    for path in (root / "Annotations/._0.xml", root / "JPEGImages/._0.png", root / "._x.xml"):
        path.write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ")
    (root / "__MACOSX/Annotations").mkdir(parents=True)
    (root / "__MACOSX/Annotations/1.xml").write_text("<annotation/>")
    assert boxes_by_stem(root) == EXPECTED


def test_folders_of_cameras__and_a_set_in_a_folder_of_its_own(tmp_path: Path):
    root = tmp_path / "set"
    for camera, seed in (("cam1", 0), ("cam2", 1)):
        made = write_voc(tmp_path / camera, 3, seed)
        for folder in ("JPEGImages", "Annotations"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (made / folder).rename(root / folder / camera)
    found = {one.key: one.boxes for one in read_boxes(root)[1].images}
    for camera, seed in (("cam1", 0), ("cam2", 1)):
        for n, (_, rows) in enumerate(pictures(3, seed=seed)):
            assert found[f"JPEGImages/{camera}/{n}.png"] == [row[1:] for row in rows]
    write_voc(root / "backup" / "of_yesterday", 2)
    assert {one.key for one in read_boxes(root)[1].images} == set(found)
    assert read_boxes(root)[1].notes == ("2 annotation files of another set in 'backup/of_yesterday' were skipped",)
    shutil.rmtree(root / "backup")
    kit = tmp_path / "VOCdevkit"
    kit.mkdir()
    root.rename(kit / "VOC2012")
    with pytest.raises(UserError, match=r"in subfolders: did you mean '.*VOCdevkit/VOC2012'"):
        read_boxes(kit)


def test_a_twin_of_the_stem__is_not_the_image_that_the_file_names(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    Image.new("RGB", (96, 64)).save(root / "JPEGImages/0.bmp")
    described = read_boxes(root)[1]
    assert described.images[0].key == "JPEGImages/0.png"
    assert described.notes == ("1 image without an annotation is left out",)
    (root / "JPEGImages/3.png").rename(root / "JPEGImages/3.bmp")
    assert read_boxes(root)[1].notes[0] == (
        "1 annotation file names an image with another suffix, such as Annotations/3.xml: JPEGImages/3.bmp was used"
    )
    text = (root / "Annotations/0.xml").read_text()
    (root / "Annotations/0.xml").write_text(text.replace("<filename>0.png</filename>", ""))
    with pytest.raises(UserError, match=r"may describe 'JPEGImages/0\.bmp' or 'JPEGImages/0\.png'"):
        read_boxes(root)


def test_names_of_before_a_renaming__are_not_believed_where_several_files_have_them(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    for n in range(6):
        path = root / f"Annotations/{n}.xml"
        path.write_text(path.read_text().replace(f"<filename>{n}.png", "<filename>0.png"))
    assert boxes_by_stem(root) == EXPECTED
    assert read_boxes(root)[1].notes == (
        "5 annotation files name the image of another file, such as Annotations/1.xml: the image with the name of "
        "the annotation file was used",
    )
    (root / "JPEGImages/3.png").unlink()
    with pytest.raises(UserError, match=r"'JPEGImages/0\.png' is described twice in .*'Annotations/3\.xml'"):
        read_boxes(root)


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("gb2312", "细胞"), ("big5", "細胞"), ("shift_jis", "細胞"), ("windows-1251", "клетка"), ("utf-16", "клетка"),
     ("iso-8859-1", "Käfer"), ("utf-8", "細胞")],
)  # fmt: skip
def test_encodings__are_those_that_a_file_declares(tmp_path: Path, encoding: str, name: str):
    root = write_voc(tmp_path / "set")
    path = root / "Annotations/0.xml"
    text = path.read_text().replace("red", name).replace("blue", name)
    path.write_bytes((f'<?xml version="1.0" encoding="{encoding}"?>' + text).encode(encoding))
    described = read_boxes(root)[1]
    assert set(described.images[0].names) == {name}
    assert described.notes == ()


def test_undeclared_encodings__are_noted_or_refused(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    path = root / "Annotations/0.xml"
    text = path.read_text()
    path.write_bytes(text.replace("red", "Käfer").replace("blue", "Käfer").encode("cp1252"))
    described = read_boxes(root)[1]
    assert set(described.images[0].names) == {"Käfer"}
    assert described.notes[0].startswith("0.xml is not UTF-8 and was read as Windows-1252 (Käfer)")
    for n in range(1, 5):
        other = root / f"Annotations/{n}.xml"
        other.write_bytes(other.read_text().replace("blue", "Käfer").replace("red", "Käfer").encode("cp1252"))
    assert read_boxes(root)[1].notes[2] == "and likewise for 3 more files"
    path.write_bytes(text.replace("red", "细胞").replace("blue", "细胞").encode("gbk"))
    with pytest.raises(UserError, match=r"0\.xml is not UTF-8 text .*: save it as UTF-8"):
        read_boxes(root)


def test_difficult_objects__are_marked_and_turned_boxes_refused(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    path = root / "Annotations/0.xml"
    text = path.read_text()
    path.write_text(text.replace("<bndbox>", "<difficult>1</difficult><bndbox>", 1))
    one = read_boxes(root)[1].images[0]
    assert one.crowd == [True] + [False] * (len(one.boxes) - 1)
    assert one.crowd_word == "difficult"
    path.write_text(text.replace("bndbox", "robndbox"))
    with pytest.raises(UserError, match=r"a rotated box \(robndbox\), and rotated boxes are not read"):
        read_boxes(root)


def test_class_names_in_two_unicode_forms__are_one_class(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    for n, name in enumerate(("\u00e9t\u00e9", "e\u0301te\u0301", " \u00e9t\u00e9 ")):
        path = root / f"Annotations/{n}.xml"
        path.write_text(path.read_text().replace("red", name).replace("blue", name))
    described = read_boxes(root)[1]
    assert {name for one in described.images[:3] for name in one.names} == {"\u00e9t\u00e9"}
