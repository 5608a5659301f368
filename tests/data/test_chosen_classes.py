from importlib import resources

import pytest

from paucal.data.classes import choose_classes, read_class_list, shipped_lists
from paucal.data.sources.opening import open_images
from paucal.types import UserError


def test_choose_classes__renumbers_in_the_order_of_the_set(make_folder):
    images = open_images(
        make_folder("train/ant/1.png", "train/bee/2.png", "train/cow/3.png", "train/dog/4.png", "test/dog/5.png")
    )
    names = images.location + "/../names.txt"
    with open(names, "w") as file:
        file.write("# the big and the small\ndog\n\n  bee  \n#cow\n")
    chosen = choose_classes(images, names)
    assert chosen.classes == ("bee", "dog")
    assert chosen.keys == ["test/dog/5.png", "train/bee/2.png", "train/dog/4.png"]
    assert chosen.labels.tolist() == [1, 0, 1]
    assert chosen.declared_splits == ["test", "train", "train"]
    assert chosen.notes == ("2 of 4 classes are used (names.txt)",)
    assert [chosen.store.size(i) for i in range(3)] == [(8, 12)] * 3


def test_choose_classes__leaves_images_without_label_out(make_set, tmp_path):
    images = make_set([0, 1, 2])
    images.labels[0] = -1
    (tmp_path / "names").write_text("a\nc\n")
    chosen = choose_classes(images, tmp_path / "names")
    assert chosen.keys == ["0002.png"]
    assert chosen.labels.tolist() == [1]


def test_imagenet100__is_shipped():
    names = read_class_list("imagenet100")
    assert "imagenet100" in shipped_lists()
    assert len(names) == len(set(names)) == 100
    assert names == sorted(names)
    assert (names[0], names[50], names[-1]) == ("n01558993", "n02974003", "n13040303")
    synsets = (resources.files("timm.data") / "_info" / "imagenet_synsets.txt").read_text().split()
    assert len(synsets) == 1000
    assert set(names) < set(synsets)
    assert (resources.files("paucal.data") / "class_lists" / "imagenet100.txt").is_file()


@pytest.mark.parametrize(
    ("halves", "names"),
    [
        (("digits-0-to-4", "digits-5-to-9"), "0123456789"),
        (
            ("cifar10-first-five", "cifar10-last-five"),
            ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        ),
    ],
)
def test_halves__of_small_sets_are_shipped(halves, names):
    found = [read_class_list(half) for half in halves]
    assert [*found[0], *found[1]] == list(names)
    assert len(found[0]) == len(found[1])
    assert set(halves) <= set(shipped_lists())


def test_imagenet100__chooses_from_folders(make_folder):
    names = read_class_list("imagenet100")
    images = open_images(make_folder(*(f"{name}/1.png" for name in [*names, "n00000001", "n99999999"])))
    chosen = choose_classes(images, "imagenet100")
    assert chosen.classes == tuple(names)
    assert chosen.labels.tolist() == list(range(100))


def test_read_class_list__a_file_wins_over_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet100").write_text("cat\n")
    assert read_class_list("imagenet100") == ["cat"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names names no classes; expected one name per line"),
        ("# only a comment\n", "names no classes"),
        ("cat\n", r"names only one class \('cat'\)"),
        ("cat\ndog\ncat\n", "names the class 'cat' more than once"),
        (
            "cat\ndgo\nwhale\n",
            r"2 of the 3 classes of .*names are not in .*photos \(such as 'dgo', did you mean 'dog'\?",
        ),
        ("cat\nwhale\n", r"such as 'whale'; the data has cat, cow, \.\.\."),
        ("cat # tame\ndog\n", r"such as 'cat # tame'"),  # a '#' inside belongs to the name
    ],
)
def test_choose_classes__says_what_is_wrong(make_folder, tmp_path, text, message):
    images = open_images(make_folder("cat/1.png", "cow/2.png", "dog/3.png"))
    (tmp_path / "names").write_text(text)
    with pytest.raises(UserError, match=message):
        choose_classes(images, tmp_path / "names")


def test_choose_classes__needs_a_text_file_and_labels(make_folder, tmp_path):
    folder = make_folder("cat/1.png", "dog/2.png")
    images = open_images(folder)
    with pytest.raises(UserError, match=r"imagenet10 is not a file; .* that comes with paucal \(.*, imagenet100\)"):
        choose_classes(images, "imagenet10")
    with pytest.raises(UserError, match="is not a file"):
        choose_classes(images, folder)
    (tmp_path / "names").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        choose_classes(images, tmp_path / "names")
    (tmp_path / "names").write_text("cat\ndog\n")
    with pytest.raises(UserError, match="was opened without labels"):
        choose_classes(open_images(folder, labelled=False), tmp_path / "names")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_choose_classes__from_a_list_in_any_encoding(make_folder, tmp_path, encoding):
    images = open_images(make_folder("Ka\u0308tzchen/1.png", "Hund/2.png", "Löwe/3.png"))
    (tmp_path / "names.txt").write_bytes("# some\r\nKätzchen\r\n Löwe \r\n".encode(encoding))
    assert choose_classes(images, tmp_path / "names.txt").classes == ("Kätzchen", "Löwe")
