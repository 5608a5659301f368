"""Names of classes that look the same: joined where one is meant, named where that is not certain."""

import os
import shutil
import unicodedata
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.conftest import encode
from paucal.cli.main import main
from paucal.data.checking.findings import CheckedSet, label_findings
from paucal.data.classes import alike_names, plain_if_distinct, plain_name, plain_names, with_plain_classes
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.types import UserError


@given(st.text(st.characters(), max_size=12))
def test_plain_name__is_text_that_every_file_can_hold(name):
    plain = plain_name(name)
    assert plain.encode("utf-8").decode("utf-8") == plain
    assert plain_name(plain) == plain == unicodedata.normalize("NFC", plain)
    assert plain == plain.strip()
    assert len(plain.splitlines()) <= 1


def test_plain_names__of_numbers_and_of_true_and_false():
    assert set(plain_names(["0", "0.0", "1.0", "2."]).values()) == {"0", "1", "2"}
    assert set(plain_names(["0.5", "1.0"]).values()) == {"0.5", "1.0"}
    assert set(plain_names(["v1.0", "2.0"]).values()) == {"v1.0", "2.0"}
    assert set(plain_names(["TRUE", "False", "FALSE"]).values()) == {"True", "False"}
    assert set(plain_names(["true", "false"]).values()) == {"true", "false"}
    assert set(plain_names(["CAT", "cat"]).values()) == {"CAT", "cat"}
    assert plain_if_distinct(["0.0", "1.0"]) == ("0", "1")
    assert plain_if_distinct(["cat", "cat ", "dog "]) == ("cat", "cat ", "dog ")
    assert plain_if_distinct([" ", "dog "]) == (" ", "dog ")


def test_with_plain_classes__refuses_a_name_that_nobody_sees(make_set):
    with pytest.raises(UserError, match="has no visible characters: rename"):
        with_plain_classes(replace(make_set([0, 1]), classes=("cat", "\u200b")))


def test_alike_names__are_those_that_people_take_for_one():
    names = [
        "RBC",
        "rbc",
        "red cell",
        "red_cell",
        "Red-Cell",
        "01",
        "1",
        "A+",
        "A-",
        "-1",
        "caf\u00e9",
        "cafe",
        "c\u200bat",
        "cat",
    ]
    assert alike_names(names) == [
        ["RBC", "rbc"],
        ["red cell", "red_cell", "Red-Cell"],
        ["01", "1"],
        ["c\u200bat", "cat"],
    ]


def test_with_plain_classes__joins_single_labels_and_several(make_set):
    images = replace(make_set([0, 1, 2, 2]), classes=("cat", "cat ", "dog"))
    joined = with_plain_classes(images)
    assert (joined.classes, joined.labels.tolist()) == (("cat", "dog"), [0, 0, 1, 1])
    assert joined.notes == ("1 class has several spellings, which were joined ('cat')",)
    rows = np.asarray([[1, 0, -1], [0, -1, 1], [-1, -1, 0], [0, 1, 0]], dtype=np.int8)
    several = with_plain_classes(replace(images, labels=np.full(4, -1), multi_hot=rows))
    assert several.multi_hot is not None
    assert several.multi_hot.tolist() == [[1, -1], [0, 1], [-1, 0], [1, 0]]


def test_with_plain_classes__keeps_the_order_that_a_set_has_of_its_own(make_set):
    images = replace(make_set([0, 1, 2]), classes=("zebra ", "cat", "dog"))
    assert with_plain_classes(images).classes == ("zebra", "cat", "dog")
    assert with_plain_classes(replace(images, classes=("a", "b", "c"))).notes == ()


def test_folders__of_one_name_in_two_unicode_forms_are_one_class(make_folder):
    folder = make_folder("caf\u00e9/1.png", "cafe\u0301/2.png", "dog/3.png", "dog /4.png")
    images = open_images(folder)
    assert images.classes == ("caf\u00e9", "dog")
    assert images.class_counts().tolist() == [2, 2]
    assert any("several spellings" in note for note in images.notes)
    assert sorted({images.store.read(index).size for index in range(4)}) == [(12, 8)]


def test_folders__whose_names_are_bytes_have_valid_classes(make_folder):
    try:
        folder = make_folder("K\udce4tzchen/1.png", "\udcc3\udce8\udcb9/2.png")
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    images = open_images(folder)
    assert images.classes == ("Kätzchen", "\\xc3\\xe8\\xb9")
    assert images.store.size(0) == (8, 12)
    assert any("not UTF-8" in note for note in images.notes)


def findings(images) -> dict[str, str]:
    checked = CheckedSet(images, np.full(len(images), "train", dtype="<U6"), False)
    return {one.name: one.text for one in label_findings(checked)}


def test_findings__name_what_is_alike_missing_or_measured(make_set):
    images = replace(make_set([0, 1, 2, 3]), classes=("CAT", "NA", "cat", "dog"))
    found = findings(images)
    assert "1 group of classes has names that look the same ('CAT' and 'cat')" in found["alike-classes"]
    assert "'NA' is learnt as a class" in found["missing-labels"]
    measured = replace(make_set(list(range(10))), classes=tuple(f"{n * 1.5}" for n in range(10)))
    assert "look like measurements" in findings(measured)["measurements"]
    assert "measurements" not in findings(make_set(list(range(10))))
    assert "measurements" not in findings(replace(measured, classes=tuple("0123456789")))


def test_check_and_train__say_that_classes_are_alike(make_folder, capsys):
    folder = make_folder(*(f"{name}/{n}.png" for name in ("Cat", "cat", "dog") for n in range(4)))
    main(["check", str(folder)])
    assert "'Cat' and 'cat'" in capsys.readouterr().out


def test_split__of_measurements_says_what_they_are(make_folder, tmp_path):
    folder = make_folder(*(f"{n}.png" for n in range(12)))
    (folder / "ages.csv").write_text("image,label\n" + "".join(f"{n}.png,{20 + 1.37 * n:.2f}\n" for n in range(12)))
    with pytest.raises(
        UserError, match=r"look like measurements \(20\.00, 21\.37, 22\.74, \.\.\.\), but a classifier needs classes"
    ):
        make_split(open_images(folder / "ages.csv"))


def test_folders__that_cannot_be_read_are_refused(make_folder, monkeypatch):
    folder = make_folder("cat/1.png", "cat/more/2.png", "dog/3.png")
    scandir = os.scandir

    def denied(path):
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(
        UserError, match=r"the folder .*cat/more cannot be read \(permission denied\): change its permissions"
    ):
        open_images(folder)


def test_folders__of_systems_and_links_to_others(make_folder):
    litter = ("#recycle", "$RECYCLE.BIN", "lost+found", "__pycache__", "System Volume Information", "@eaDir")
    folder = make_folder("cat/1.png", "dog/2.png", *(f"{name}/3.png" for name in litter))
    (folder / "empty").mkdir()
    (folder / "empty").rename(folder / "__MACOSX")
    assert open_images(folder).classes == ("cat", "dog")
    (folder / "feline").symlink_to("cat")
    with pytest.raises(
        UserError, match=r"the class folders 'feline' and 'cat' in .* are the same folder: remove the link"
    ):
        open_images(folder)
    (folder / "feline").unlink()
    parts = (
        make_folder("set/train/cat/1.png", "set/train/dog/2.png", "set/test/cat/3.png", "set/test/dog/4.png") / "set"
    )
    (parts / "train/feline").symlink_to("cat")
    with pytest.raises(UserError, match=r"the class folders 'train/feline' and 'train/cat' in .* are the same folder"):
        open_images(parts)
    shutil.rmtree(parts)
    (folder / "dog" / "again").symlink_to(folder / "cat")
    images = open_images(folder)
    assert any("the folders dog/again and cat are the same" in note for note in images.notes)


def test_folders__that_cannot_be_compared_do_not_hide_a_link_to_another(make_folder, monkeypatch):
    folder = make_folder("ape/1.png", "cat/2.png")
    (folder / "feline").symlink_to("cat")
    samefile = os.path.samefile

    def compare(first, second):
        if second == folder / "ape":
            raise PermissionError
        return samefile(first, second)

    monkeypatch.setattr(os.path, "samefile", compare)
    with pytest.raises(UserError, match=r"the class folders 'feline' and 'cat' in .* are the same folder"):
        open_images(folder)


class Unflagged(zipfile.ZipInfo):
    """An entry with a name in UTF-8, and without the flag that says so."""

    def _encodeFilenameFlags(self):
        return self.filename.encode(), self.flag_bits & ~0x800


def test_zip__of_macos_has_names_in_utf8_without_saying_so(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for number, name in enumerate(("Kätzchen", "犬")):
            archive.writestr(Unflagged(f"{name}/{number}.png"), encode(number))
    images = open_images(tmp_path / "photos.zip")
    assert images.classes == ("Kätzchen", "犬")
    assert images.keys == ["Kätzchen/0.png", "犬/1.png"]
    assert images.store.read(1).getpixel((0, 0)) == (1, 254, 7)


def test_zip__of_windows_has_backslashes(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for number, name in enumerate(("cat", "dog")):
            archive.writestr(f"photos\\{name}\\{number}.png", encode(number))
    images = open_images(tmp_path / "photos.zip")
    assert (images.classes, images.keys) == (("cat", "dog"), ["cat/0.png", "dog/1.png"])
    assert images.store.read(1).getpixel((0, 0)) == (1, 254, 7)
