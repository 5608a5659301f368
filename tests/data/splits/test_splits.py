from dataclasses import replace

import numpy as np
import pytest

from paucal.data.sources.opening import open_images
from paucal.data.splits.split import (
    keep_all_for_training,
    keep_train_fraction,
    keep_train_per_class,
    limit_val,
    make_split,
)
from paucal.data.splits.split_csv import read_rows, read_split, write_split
from paucal.types import UserError


def _per_class(images, split, part) -> list[int]:
    return images.class_counts(split.indices(part)).tolist()


def test_make_split__cuts_each_class_by_its_share(make_set):
    images = make_set([0] * 100 + [1] * 50 + [2] * 10)
    split = make_split(images, seed=3)
    assert _per_class(images, split, "val") == [10, 5, 1]
    assert _per_class(images, split, "test") == [20, 10, 2]
    assert _per_class(images, split, "train") == [70, 35, 7]
    assert split.description == "val is 0.1 of all images and test is 0.2 of all images, cut per class (seed 3)"
    assert split.counts() == {"train": 112, "val": 16, "test": 32, "unused": 0}


def test_make_split__gives_every_part_of_a_tiny_class_an_image(make_set):
    images = make_set([0] * 3 + [1] * 30)
    split = make_split(images)
    assert [_per_class(images, split, part)[0] for part in ("train", "val", "test")] == [1, 1, 1]
    greedy = make_split(images, val_fraction=0.5, test_fraction=0.49)
    assert min(_per_class(images, greedy, "train")) >= 1


def test_keep_all__trains_on_every_image_and_refuses_a_lone_one(make_set):
    split = keep_all_for_training(make_set([0, 0, 1, 1, 1]))
    assert split.counts() == {"train": 5, "val": 0, "test": 0, "unused": 0}
    assert "cross-validated" in split.description
    with pytest.raises(UserError, match="has 1 image to train on; expected at least 2"):
        keep_all_for_training(make_set([0, 0, 1]))


def test_make_split__depends_on_keys_and_seed_but_not_on_order(make_set):
    labels = [0, 1] * 30
    images = make_set(labels)
    order = np.random.default_rng(0).permutation(60)
    moved = replace(images, keys=[images.keys[i] for i in order], labels=images.labels[order])
    split, other = make_split(images, seed=1), make_split(moved, seed=1)
    assert {images.keys[i] for i in split.indices("test")} == {moved.keys[i] for i in other.indices("test")}
    assert not np.array_equal(split.parts, make_split(images, seed=2).parts)


def test_make_split__keeps_three_declared_parts(make_set):
    declared = ["train", "test", "val", "train", "val"]
    split = make_split(make_set([0, 0, 0, 1, 1], declared))
    assert split.parts.tolist() == declared
    assert "own folders" in split.description


def test_make_split__cuts_val_from_train_beside_a_test_folder(make_set):
    images = make_set([0, 1] * 20, ["train"] * 30 + ["test"] * 10)
    split = make_split(images)
    assert split.indices("test").tolist() == list(range(30, 40))
    assert _per_class(images, split, "val") == [2, 2]  # round(1.5) is 2
    assert "the data's own test folder" in split.description


def test_make_split__reports_on_a_lone_val_folder(make_set):
    images = make_set([0, 1] * 20, ["train"] * 30 + ["val"] * 10)
    split = make_split(images)
    assert split.indices("test").tolist() == list(range(30, 40))
    assert len(split.indices("val")) == 4
    assert "test is the data's own val folder" in split.description


def test_make_split__treats_train_alone_as_no_parts(make_set):
    split = make_split(make_set([0, 1] * 20, ["train"] * 40))
    assert split.counts() == {"train": 28, "val": 4, "test": 8, "unused": 0}


def test_make_split__without_labels_is_one_class():
    split = make_split(open_images("digits", labelled=False), val_fraction=0.1, test_fraction=0)
    assert split.counts() == {"train": 1617, "val": 180, "test": 0, "unused": 0}


def test_make_split__zero_fractions_cut_nothing(make_set):
    split = make_split(make_set([0, 1]), val_fraction=0, test_fraction=0)
    assert split.parts.tolist() == ["train", "train"]
    assert split.description == "train is all images, and no images are kept for model selection"


def test_make_split__without_val_trains_on_all_but_the_usual_test_images(make_set):
    images = make_set([0] * 100 + [1] * 50 + [2] * 2)
    with pytest.raises(UserError, match="class 'c' has 2 images to train on; expected at least 3"):
        make_split(images, seed=3)
    split = make_split(images, seed=3, val_fraction=0)
    assert _per_class(images, split, "train") == [80, 40, 1]
    assert _per_class(images, split, "val") == [0, 0, 0]
    larger = make_set([0] * 100 + [1] * 50)  # a run with val on the same images has the same test
    usual, all_used = make_split(larger, seed=3), make_split(larger, seed=3, val_fraction=0)
    assert all_used.indices("test").tolist() == usual.indices("test").tolist()
    assert set(all_used.indices("train")) == {*usual.indices("train"), *usual.indices("val")}
    assert all_used.description.endswith("and no images are kept for model selection")


def test_make_split__without_val_trains_on_a_val_folder_beside_a_test_folder(make_set):
    split = make_split(make_set([0, 0, 0, 1, 1], ["train", "test", "val", "train", "val"]), val_fraction=0)
    assert split.parts.tolist() == ["train", "test", "train", "train", "train"]
    assert (
        "train is the data's own train and val folders, and no images are kept for model selection" in split.description
    )
    lone = make_split(make_set([0, 0, 1, 1], ["train", "val", "train", "val"]), val_fraction=0)
    assert lone.parts.tolist() == ["train", "test", "train", "test"]


@pytest.mark.parametrize(
    ("labels", "declared", "message"),
    [
        ([0, 0, 0, 1, 1], None, "class 'b' has 2 images to train on; expected at least 3"),
        (
            [0, 0, 1, 1],
            ["train", "train", "train", "test"],
            "class 'b' has 1 image to train on; expected at least 2",
        ),
        (
            [0, 0, 0, 1],
            ["train", "train", "val", "test"],
            "class 'b' has 0 images to train on; expected at least 1",
        ),
        ([0, 1], ["test", "test"], r"has the splits \['test'\]; expected train with val or test"),
        ([0, 1], ["val", "test"], r"has the splits \['test', 'val'\]"),
    ],
)
def test_make_split__says_what_is_wrong(make_set, labels, declared, message):
    with pytest.raises(UserError, match=message):
        make_split(make_set(labels, declared))


@pytest.mark.parametrize("fractions", [(-0.1, 0.2), (0.5, 0.5), (1.0, 0.0), (float("nan"), 0.1)])
def test_make_split__refuses_fractions_that_leave_nothing(make_set, fractions):
    with pytest.raises(UserError, match="leave no training images"):
        make_split(make_set([0, 1] * 20), 0, *fractions)


def test_take_fraction__is_stratified_and_nested(make_set):
    images = make_set([0] * 100 + [1] * 20 + [2] * 10)
    split = make_split(images, val_fraction=0, test_fraction=0.2)
    previous: set[int] = set()
    for fraction, expected in ((0.01, [1, 1, 1]), (0.25, [20, 4, 2]), (0.5, [40, 8, 4]), (1.0, [80, 16, 8])):
        taken = keep_train_fraction(split, images.labels, fraction, seed=5)
        train = set(taken.indices("train").tolist())
        assert _per_class(images, taken, "train") == expected
        assert previous <= train
        assert np.array_equal(taken.indices("test"), split.indices("test"))
        assert len(taken.indices("unused")) + len(train) == len(split.indices("train"))
        previous = train
    assert "0.25 of the training images of each class" in keep_train_fraction(split, images.labels, 0.25, 5).description


def test_take_fraction__depends_on_the_seed(make_set):
    split = make_split(images := make_set([0, 1] * 50))
    first, second = (keep_train_fraction(split, images.labels, 0.5, seed).parts for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_take_few__takes_all_of_a_small_class_and_says_so(make_set):
    images = make_set([0] * 40 + [1] * 10)
    split = make_split(images, val_fraction=0, test_fraction=0.2)
    few = keep_train_per_class(split, images.labels, 9, seed=0)
    assert _per_class(images, few, "train") == [9, 8]
    assert "(all images of the one class that has fewer)" in few.description
    fewer = keep_train_per_class(split, images.labels, 4, seed=0)
    assert set(fewer.indices("train")) < set(few.indices("train"))
    assert "fewer" not in fewer.description


def test_limit_val__never_leaves_more_to_validate_than_to_train(make_set):
    images = make_set([0] * 400 + [1] * 100)
    split = make_split(images, val_fraction=0.4, test_fraction=0.2)
    few = keep_train_per_class(split, images.labels, 10, seed=0)
    limited = limit_val(few, images.labels, seed=0)
    assert _per_class(images, few, "val") == [160, 40]
    assert _per_class(images, limited, "val") == [16, 4]
    assert set(limited.indices("val")) < set(few.indices("val"))
    assert limited.indices("test").tolist() == few.indices("test").tolist()
    assert limited.description.endswith("no more validation than training images")
    assert limit_val(split, images.labels, seed=0) is split


def test_take_few__counts_a_single_image_in_the_singular(make_set):
    split = make_split(images := make_set([0, 1] * 10))
    assert keep_train_per_class(split, images.labels, 1, 0).description.endswith(
        "; 1 training image of each class is used (seed 0)"
    )


def test_take__refuses_senseless_numbers(make_set):
    split = make_split(images := make_set([0, 1] * 10))
    with pytest.raises(UserError, match=r"fraction of training images is 0; expected a number above 0"):
        keep_train_fraction(split, images.labels, 0, 0)
    with pytest.raises(UserError, match="number of training images per class is 0"):
        keep_train_per_class(split, images.labels, 0, 0)


def test_split_file__brings_back_the_split_in_any_order(make_set, tmp_path):
    images = make_set([0, 1] * 10)
    split = keep_train_per_class(make_split(images), images.labels, 2, 0)
    write_split(tmp_path / "split.csv", images, split)
    assert (tmp_path / "split.csv").read_text().splitlines()[:2] == [
        "key,label,class,split",
        f"0000.png,0,a,{split.parts[0]}",
    ]
    order = np.arange(20)[::-1]
    moved = replace(images, keys=[images.keys[i] for i in order], labels=images.labels[order])
    again = read_split(tmp_path / "split.csv", moved)
    assert again.parts.tolist() == split.parts[order].tolist()


def test_split_file__stores_the_group_of_each_image(make_set, tmp_path):
    images = make_set([0, 1] * 10)
    split = make_split(images, group_by="[0-9]([0-9])[.]png")
    few = limit_val(keep_train_per_class(split, images.labels, 2, 0), images.labels, 0)
    for own in (split, few):
        write_split(tmp_path / "split.csv", images, own)
        rows = read_rows(tmp_path / "split.csv")
        assert [row["group"] for row in rows] == [str(position % 10) for position in range(20)]
        order = np.arange(20)[::-1]
        moved = replace(images, keys=[images.keys[i] for i in order], labels=images.labels[order])
        for image_set, parts in ((images, own.parts), (moved, own.parts[order])):
            again = read_split(tmp_path / "split.csv", image_set)
            assert again.parts.tolist() == parts.tolist()
            assert [again.groups[0] == group for group in again.groups] == [True, *[False] * 9] * 2


def test_split_file__keeps_odd_names(make_set, tmp_path):
    images = make_set([0, 1], keys=['a,"b"\n.png', "caf\udce9.png"])
    split = make_split(images, val_fraction=0, test_fraction=0)
    write_split(tmp_path / "split.csv", images, split)
    assert read_split(tmp_path / "split.csv", images).parts.tolist() == ["train", "train"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "key,label,class,split\n0000.png,0,a,train\n",
            r"1 \(0001\.png\) of the images are not in the file, and 0 of",
        ),
        (
            "key,label,class,split\n0000.png,0,a,train\n0001.png,1,b,val\nz,1,b,val\n",
            r"and 1 \(z\) of the file's rows are not",
        ),
        (
            "key,label,class,split\n0000.png,0,a,train\n0001.png,1,a,val\n",
            r"0001\.png is in class 'a' in .*, but in class 'b' in",
        ),
        (
            "key,label,class,split\n0000.png,0,a,train\n0001.png,1,b,dev\n",
            r"has the split 'dev' for 0001\.png; expected",
        ),
        ("key,label,class,split\n0000.png\n", "has the split 'None' for 0000.png"),
        ("key,label,class,split\n0000.png,0,a,train\n0000.png,0,a,val\n", "names an image twice"),
        ("key,split\n0000.png,train\n", r"has the columns \['key', 'split'\]; expected"),
        (
            ",".join(["key", "x" * 400, *map(str, range(90))]) + "\n",
            r"has the columns \['key', 'x{20}', '0', '1'\] and 88 more; expected",
        ),
        ("", r"has the columns \[\]; expected"),
    ],
)
def test_read_split__refuses_what_does_not_fit(make_set, tmp_path, text, message):
    (tmp_path / "split.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_split(tmp_path / "split.csv", make_set([0, 1]))


def test_read_split__refuses_a_missing_file(make_set, tmp_path):
    with pytest.raises(UserError, match="cannot be read as a split"):
        read_split(tmp_path / "split.csv", make_set([0, 1]))


def test_limit_val__counts_classes_that_keep_one_image(make_set):
    images = make_set([0] * 200 + [1] * 6 + [2] * 6 + [3] * 6)
    few = keep_train_per_class(make_split(images), images.labels, 1, seed=0)
    limited = limit_val(few, images.labels, seed=0)
    assert _per_class(images, few, "train") == [1, 1, 1, 1]
    assert _per_class(images, limited, "val") == [1, 1, 1, 1]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_split_file__saved_again_by_another_program(make_set, tmp_path, encoding, separator):
    keys = [f"Kätzchen/{number} é.png" for number in range(20)]
    images = replace(make_set([0, 1] * 10, keys=keys), classes=("001", "TRUE"))
    split = make_split(images)
    write_split(tmp_path / "split.csv", images, split)
    text = (tmp_path / "split.csv").read_text(encoding="utf-8").replace(",", separator)
    text = text.replace("001", "1").replace("TRUE", "True")
    (tmp_path / "split.csv").write_bytes(text.encode(encoding))
    assert read_split(tmp_path / "split.csv", images).parts.tolist() == split.parts.tolist()


def test_split_file__of_images_copied_to_a_system_of_another_unicode_form(make_set, tmp_path):
    keys = [f"caf\u00e9/{number}.png" for number in range(20)]
    images = make_set([0, 1] * 10, keys=keys)
    split = make_split(images)
    write_split(tmp_path / "split.csv", images, split)
    copied = replace(images, keys=[key.replace("\u00e9", "e\u0301") for key in keys])
    assert read_split(tmp_path / "split.csv", copied).parts.tolist() == split.parts.tolist()
    twins = replace(images, keys=["A.png", "a.png", *keys[2:]])
    write_split(tmp_path / "split.csv", twins, split)
    order = [1, 0, *range(2, 20)]
    moved = replace(twins, keys=[twins.keys[i] for i in order], labels=twins.labels[order])
    assert read_split(tmp_path / "split.csv", moved).parts.tolist() == split.parts[order].tolist()


def test_split_file__is_utf8_whatever_the_names_are(make_set, tmp_path):
    images = make_set([0, 1], keys=["a.png", " caf\udce9.png"])
    split = make_split(images, val_fraction=0, test_fraction=0)
    write_split(tmp_path / "split.csv", images, split)
    (tmp_path / "split.csv").read_text(encoding="utf-8")
    assert [row["key"] for row in read_rows(tmp_path / "split.csv")] == images.keys


def test_writing__that_fails_leaves_the_stored_split_as_it_was(make_set, tmp_path):
    images = make_set([0, 1] * 10)
    split, path = make_split(images, seed=0), tmp_path / "split.csv"
    write_split(path, images, split)
    stored = path.read_bytes()
    with pytest.raises(ValueError, match="shorter"):
        write_split(path, images, split, digests=["too", "few"])
    assert path.read_bytes() == stored
    assert [file.name for file in tmp_path.iterdir()] == ["split.csv"]
