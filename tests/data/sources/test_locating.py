"""Where the images of tables and lists lie: in a folder for each part, by other spellings, on another machine."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.conftest import encode
from paucal.data.sources.locating import FileFinder, fold_name
from paucal.data.sources.opening import open_images
from paucal.types import UserError


def images_at(root: Path, *paths: str) -> None:
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(encode(number % 256))


def table(file: Path, paths: list[str], header: str = "image,label") -> Path:
    """Write a table whose labels are a and b in turn."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{header}\n" + "".join(f"{path},{'ab'[n % 2]}\n" for n, path in enumerate(paths)))
    return file


def value(images, index: int) -> int:
    return images.store.read(index).getpixel((0, 0))[0]


NAMES = [f"{number}.png" for number in range(4)]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("{}", "{}.csv"),
        ("{}_images", "{}_labels.csv"),
        ("images/{}", "annotations/{}.csv"),
        ("{}/images", "{}.csv"),
        ("images-{}", "birds_{}.csv"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_tables__of_parts_find_their_own_folders(tmp_path, folder, name, alone):
    for part in ("train", "val", "test"):
        images_at(tmp_path / folder.format(part), *NAMES)
        table(tmp_path / name.format(part), NAMES)
    images_at(tmp_path / folder.format("test"), "x", "x", "x", "x", *NAMES)  # other pictures under the same names
    images = open_images(tmp_path / name.format("train") if alone else tmp_path)
    assert images.declared_splits == ["train"] * 4 + ["val"] * 4 + ["test"] * 4
    assert f"{images.location}/{images.keys[0]}" == f"{tmp_path}/{folder.format('train')}/0.png"
    assert [value(images, index) for index in range(12)] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]
    assert images.labels.tolist() == [0, 1] * 6


def test_table__with_parts_in_a_column_finds_their_folders(tmp_path):
    for part in ("train", "test"):
        images_at(tmp_path / part, *NAMES)
    rows = "".join(f"{name},{'ab'[n % 2]},{part}\n" for part in ("train", "test") for n, name in enumerate(NAMES))
    (tmp_path / "labels.csv").write_text(f"image,label,split\n{rows}")
    assert open_images(tmp_path / "labels.csv").keys[::4] == ["train/0.png", "test/0.png"]


def test_table__of_paths_in_folders_of_parts_has_these_parts(tmp_path):
    images_at(tmp_path, *(f"{part}/{name}" for part in ("train", "Valid") for name in NAMES))
    paths = [f"{part}/{name}" for part in ("train", "Valid") for name in NAMES]
    images = open_images(table(tmp_path / "metadata.csv", paths, "file_name,label"))
    assert images.declared_splits == ["train"] * 4 + ["val"] * 4
    assert any("the splits are the folders of the images (Valid, train)" in note for note in images.notes)
    assert set(open_images(table(tmp_path / "metadata.csv", paths[4:], "file_name,label")).declared_splits) == {""}


def test_lists__of_parts_find_their_own_folders(tmp_path):
    for part, begin in (("train", 0), ("val", 4)):
        images_at(tmp_path / part, *["x"] * begin, "a/0.png", "b/1.png")
        (tmp_path / f"{part}.txt").write_text("a\\0.png 0\nb/1.png 1\n")
    images = open_images(tmp_path)
    assert images.keys == ["train/a/0.png", "train/b/1.png", "val/a/0.png", "val/b/1.png"]
    assert [value(images, index) for index in range(4)] == [0, 1, 4, 5]
    assert images.classes == ("a", "b")


def test_lists__of_trainval_hold_what_train_and_val_hold(tmp_path):
    images_at(tmp_path, *(f"all/{name}" for name in NAMES))
    for name, some in (("trainval", NAMES[:3]), ("test", NAMES[3:])):
        (tmp_path / f"{name}.txt").write_text("".join(f"all/{one} {one[0]}\n" for one in some))
    assert open_images(tmp_path).declared_splits == ["train", "train", "train", "test"]
    for name, some in (("train", NAMES[:2]), ("val", NAMES[2:3])):
        (tmp_path / f"{name}.txt").write_text("".join(f"all/{one} {one[0]}\n" for one in some))
    assert open_images(tmp_path).declared_splits == ["train", "train", "val", "test"]
    assert open_images(tmp_path / "trainval.txt").declared_splits == ["train", "train", "train", "test"]


def test_tables__that_cannot_be_read_beside_the_train_table_are_refused(tmp_path):
    images_at(tmp_path, *NAMES)
    table(tmp_path / "train.csv", NAMES[:2])
    (tmp_path / "test.csv").write_bytes("image,label\n2.png,кошка\n".encode("cp1251"))
    for place in (tmp_path, tmp_path / "train.csv"):
        with pytest.raises(UserError, match=r"test\.csv is not UTF-8 text"):
            open_images(place)


def test_table__finds_files_by_other_spellings(tmp_path):
    images_at(tmp_path, "IMG_1.PNG", "cafe\u0301.png", "Day 1/3.png")
    images = open_images(table(tmp_path / "l.csv", ["img_1.png", "caf\u00e9.png", "day 1/3.PNG"]))
    assert images.keys == ["IMG_1.PNG", "cafe\u0301.png", "Day 1/3.png"]
    assert any("3 paths differ from the file names in case" in note for note in images.notes)


def test_table__finds_a_file_whose_capital_has_no_composed_form(tmp_path):
    small, capital = "j\u0323\u030c.png", "J\u0323\u030c.png"  # only the small letter is composed, with its caron
    images_at(tmp_path, small, "b.png")
    assert open_images(table(tmp_path / "l.csv", [capital, "b.png"])).keys == [small, "b.png"]


def test_table__of_bytes_finds_files_of_the_same_bytes(tmp_path):
    try:
        images_at(tmp_path, "K\udce4tz.png", "b.png")
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    (tmp_path / "l.csv").write_bytes("image,label\nKätz.png,Kätzchen\nb.png,Hund\n".encode("cp1252"))
    images = open_images(tmp_path / "l.csv")
    assert [value(images, index) for index in range(2)] == [0, 1]
    assert images.classes == ("Hund", "Kätzchen")
    assert any("l.csv is not UTF-8 and was read as Windows-1252 (Kätz, Kätzchen)" in note for note in images.notes)


def test_table__of_ids_finds_images_of_any_ending(tmp_path):
    images_at(tmp_path, "1.jpg", "2.png", "v1.5.webp", "1.txt")
    assert open_images(table(tmp_path / "l.csv", ["1", "2", "v1.5"], "id,label")).keys == [
        "1.jpg",
        "2.png",
        "v1.5.webp",
    ]
    images_at(tmp_path, "1.png")
    with pytest.raises(UserError, match=r"'1' in line 2 of .*l.csv matches 1.jpg and 1.png: give the exact name"):
        open_images(tmp_path / "l.csv")


def test_absolute_paths__below_a_given_root(tmp_path):
    images_at(tmp_path / "photos", "a/0.png", "b/1.png")
    paths = [f"{tmp_path}/photos/a/0.png", f"{tmp_path}/photos/b/1.png"]
    file = table(tmp_path / "elsewhere" / "lists" / "labels.csv", paths)
    for root in ("/", tmp_path, tmp_path / "photos"):
        images = open_images(file, root=root)
        assert [value(images, index) for index in range(2)] == [0, 1]
    assert images.keys == ["a/0.png", "b/1.png"]
    with pytest.raises(UserError, match=rf"all paths are in {tmp_path}/photos: use --data-root {tmp_path}/photos\."):
        open_images(file)
    listing = tmp_path / "photos" / "list.txt"
    listing.write_text("".join(f"{path} {n}\n" for n, path in enumerate(paths)))
    assert open_images(listing).keys == ["a/0.png", "b/1.png"]


@pytest.mark.parametrize("begin", ["/home/me/set/", "C:\\Users\\me\\set\\", "\\\\server\\set\\"])
def test_absolute_paths__of_another_machine(tmp_path, begin):
    images_at(tmp_path / "photos", "a/0.png", "b/1.png")
    file = table(tmp_path / "labels.csv", [f"{begin}a/0.png", f"{begin}b/1.png"])
    with pytest.raises(UserError, match=r"which is not on this machine: use --data-root to give their folder here\."):
        open_images(file)
    images = open_images(file, root=tmp_path / "photos")
    assert images.keys == ["a/0.png", "b/1.png"]
    assert any("was replaced by" in note for note in images.notes)


def test_paths__that_are_urls_or_climb(tmp_path):
    images_at(tmp_path, "0.png")
    for url in ("https://example.org/0.png", "s3://bucket/0.png"):
        with pytest.raises(
            UserError, match=f"line 2 of .* has the URL '{url}': download the images, and replace the URLs by"
        ):
            open_images(table(tmp_path / "l.csv", [url, url]))
    with pytest.raises(UserError, match=r"line 3 of .* has a path outside of the folder"):
        open_images(table(tmp_path / "l.csv", ["0.png", "../secret.png"]))


@settings(max_examples=40, deadline=None)
@given(names=st.lists(st.text("abAB1é\u0301 .", min_size=1, max_size=5), min_size=1, max_size=6, unique=True))
def test_finder__finds_every_file_by_its_own_name(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("files")
    files = {f"x{name}.png" for name in names}
    for name in files:
        (folder / name).write_bytes(b"")
    finder = FileFinder(folder)
    assert all(finder.find(name) == [name] for name in files)
    assert finder.find("nothing.png") == []


def test_fold_name__is_equal_for_other_case_and_unicode_form():
    assert fold_name("E\u0301tang") == fold_name("\u00c9TANG")
