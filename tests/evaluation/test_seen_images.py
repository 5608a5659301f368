"""Whether a model has seen an image: by its own run, and by the runs it began with."""

from pathlib import Path

import numpy as np
import pytest

from paucal.data.images import ImageSet
from paucal.data.splits.split import Split
from paucal.data.splits.split_csv import write_split
from paucal.evaluation.seen_images import (
    initial_weights_overlap_remarks,
    iterate_seen_images,
    keys_with_seen_labels,
    require_unseen,
    seen_unlabelled,
)
from paucal.runs import RunFolder
from paucal.types import UserError

TEST = np.arange(6)


class NoPixels:
    def __len__(self) -> int:
        return 6


def a_set(location: str, name: str = "", keys: str = "abcdef") -> ImageSet:
    """Six images of one class."""
    keys_of = [f"{key}.png" for key in keys]
    labels = np.zeros(6, dtype=np.int64)
    return ImageSet(name or Path(location).name, location, ("x",), keys_of, labels, [""] * 6, NoPixels())  # type: ignore[arg-type]


def a_run(path: Path, images: ImageSet, init: Path | None = None, verb: str = "train", data: str = "") -> RunFolder:
    """A run that was trained on the first three images, chosen by the fourth and tested with the others."""
    path.mkdir()
    run = RunFolder(path)
    settings = {"data": data or images.location, "init": None if init is None else str(init)}
    run.write_config(settings, {}, verb, location=images.location)
    parts = np.asarray(["train"] * 3 + ["val"] + ["test"] * 2, dtype="<U6")
    write_split(run.split, images, Split(parts, ""))
    return run


def test_run__has_seen_what_the_run_it_began_with_has(tmp_path):
    first, second = a_set("/first"), a_set("/second", keys="uvwxyz")
    old = a_run(tmp_path / "old", first)
    new = a_run(tmp_path / "new", second, init=old.path)
    newest = a_run(tmp_path / "newest", second, init=new.path / "model.safetensors")
    new.weights.touch()
    assert [one.run.path.name for one in iterate_seen_images(newest)] == ["newest", "new", "old"]
    assert keys_with_seen_labels(newest, first) == {"a.png", "b.png", "c.png"}
    with pytest.raises(UserError, match=r"^mine started from .*old, which was trained on, or selected by, 4 of"):
        require_unseen("mine", new, first, TEST)
    require_unseen("mine", new, first, TEST[4:])  # those that all have tested with


def test_run__was_chosen_by_its_validation_images_and_told_the_labels_of_the_others_alone(tmp_path):
    images = a_set("/photos")
    run = a_run(tmp_path / "run", images)
    assert keys_with_seen_labels(run, images) == {"a.png", "b.png", "c.png"}
    with pytest.raises(UserError, match=r"^mine was trained on, or selected by, 1 of the 2 test images of photos"):
        require_unseen("mine", run, images, np.asarray([3, 4]))


def test_pretraining__has_seen_images_and_was_told_no_label(tmp_path):
    images, other = a_set("/photos"), a_set("/other")
    first = a_run(tmp_path / "first", images, verb="pretrain")
    tuned = a_run(tmp_path / "tuned", other, init=first.path)
    assert keys_with_seen_labels(tuned, images) == {
        "a.png",
        "b.png",
        "c.png",
    }  # its own, by their keys: of a copied folder
    assert keys_with_seen_labels(first, images) == frozenset()
    require_unseen("mine", tuned, images, TEST)
    assert seen_unlabelled(tuned, images, TEST) == [
        f"the pre-training {first.path} has seen 3, without labels, of the 6 test images of photos"
    ]
    split = Split(np.asarray(["train"] * 2 + ["test"] * 4, dtype="<U6"), "")
    assert initial_weights_overlap_remarks(str(tuned.path), images, split) == [
        "the initial weights were trained on 1 of the 4 test images, without labels"
    ]


def test_images__are_the_same_from_another_folder_and_under_the_name_of_their_set(tmp_path):
    whole, part = a_set("/photos", keys=["train/a", *"bcdef"]), a_set("/photos/train")
    run = a_run(tmp_path / "run", whole)
    assert [int(one.contains(part).sum()) for one in iterate_seen_images(run)] == [1]
    here, there = a_set("/data", "cifar10"), a_set("/elsewhere", "cifar10")
    named = a_run(tmp_path / "named", here, data="cifar10")
    with pytest.raises(UserError, match="4 of the 6 test images of cifar10"):
        require_unseen("mine", named, there, TEST)
    require_unseen("mine", named, a_set("/elsewhere"), TEST)


def test_start__of_other_images_with_the_same_names_is_no_alarm(tmp_path):
    first, second = a_set("/first"), a_set("/second", keys="uvwxyz")
    new = a_run(tmp_path / "new", second, init=a_run(tmp_path / "old", first).path)
    assert keys_with_seen_labels(new, a_set("/third")) == frozenset()


def test_split__that_is_damaged_is_refused_and_that_is_not_there_is_not(tmp_path):
    images = a_set("/photos")
    run = a_run(tmp_path / "run", images)
    run.split.write_text("a,b\n")
    for ask in (lambda: require_unseen("mine", run, images, TEST), lambda: keys_with_seen_labels(run, images)):
        with pytest.raises(UserError, match="has the columns"):
            ask()
    run.split.unlink()
    require_unseen("mine", run, images, TEST)
    assert keys_with_seen_labels(run, images) == frozenset()


def test_start__that_is_gone_cannot_be_told(tmp_path):
    run = a_run(tmp_path / "run", a_set("/photos"), init=tmp_path / "gone")
    said = seen_unlabelled(run, a_set("/photos"), TEST)
    assert said == [
        f"whether {tmp_path / 'gone'}, whose weights the model started from, has seen the 6 test images is unknown: "
        "the run was removed, or has no list of its images"
    ]
