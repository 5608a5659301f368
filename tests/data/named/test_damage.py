"""Data sets by name whose files are damaged or lead elsewhere."""

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from data.fake_sets import MAKE
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.in_memory import cache_images
from paucal.data.sources.opening import open_images
from paucal.types import UserError


class Trap:
    """Leaves a folder behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_cifar__a_foreign_pickle_is_never_loaded(tmp_path):
    MAKE["cifar10"](tmp_path)
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(UserError, match=r"incomplete or damaged \(files are missing or differ from the official"):
        open_images("cifar10", root=tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "file", "text", "reason"),
    [
        ("dtd", "dtd/dtd/labels/train1.txt", "../secret.jpg\n", "leads out of the folder"),
        ("aircraft", "fgvc-aircraft-2013b/data/images_variant_test.txt", "../../../x 707-320\n", "leads out"),
        ("aircraft", "fgvc-aircraft-2013b/data/images_variant_test.txt", "/etc/x 707-320\n", "not in the subpath"),
        ("food101", "food-101/meta/test.json", '{"waffles": ["../../../x"], "apple_pie": []}', "leads out"),
        ("food101", "food-101/meta/test.json", '{"waffles": []}', "different class names"),
        ("food101", "food-101/meta/test.json", "{", "Expecting property name"),
        ("pets", "oxford-iiit-pet/annotations/test.txt", "a b\n", "not enough values"),
        ("pets", "oxford-iiit-pet/annotations/test.txt", "Abyssinian_x 1 1 1\n", "different class names"),
        (
            "gtsrb",
            "gtsrb/GT-final_test.csv",
            "Filename;ClassId\n00000.ppm;43\n",
            "not one of the data set's 43 classes",
        ),
        ("fer2013", "fer2013/fer2013.csv", "emotion,pixels,Usage\n0,1 2 3,Training\n", "a face has 3 grey values"),
        ("fer2013", "fer2013/fer2013.csv", "emotion,pixels\n0,1 2 3\n", "Usage"),
        ("fer2013", "fer2013/fer2013.csv", "emotion,pixels,Usage\n", "there are no images"),
        ("ucf101", "ucf101/ucfTrainTestlist/testlist01.txt", "Archery/../../../../x.avi\n", "leads out"),
        ("ucf101", "ucf101/ucfTrainTestlist/testlist01.txt", "Yoga/v_1.avi\n", "not in tuple"),
        ("hateful_memes", "hateful_memes/dev_seen.jsonl", '{"img": "../../x.png", "label": 0}\n', "leads out"),
        (
            "hateful_memes",
            "hateful_memes/dev_seen.jsonl",
            '{"img": "img/test0.png", "label": 2}\n',
            "not one of the data set's 2 classes",
        ),
        ("hateful_memes", "hateful_memes/dev_seen.jsonl", '{"img": "img/test0.png"}\n', "label"),
        ("dtd", "dtd/dtd/labels/test1.txt", "banded/a.jpg\nwoven/b.jpg\nwoven/b.jpg\n", "listed twice"),
    ],
)
def test_damaged_lists__are_one_sentence(name, file, text, reason, root):
    MAKE[name](root)
    (root / file).write_text(text)
    with pytest.raises(UserError, match="incomplete or damaged") as error:
        open_images(name, root=root)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_unfinished_unpacking__leaves_an_image_that_is_named(root):
    MAKE["dtd"](root)
    (root / "dtd/dtd/images/woven/woven_val.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of 6 images cannot be read \(dtd/dtd/images/woven/woven_val.jpg\)"):
        cache_images(open_images("dtd", root=root))


def test_pcam__points_into_no_other_file(root):
    MAKE["pcam"](root)
    file = root / "pcam" / "camelyonpatch_level_2_split_test_x.h5"
    with h5py.File(root / "other.h5", "w") as other:
        other["x"] = np.zeros((2, 96, 96, 3), dtype=np.uint8)
    with h5py.File(file, "w") as damaged:
        damaged["x"] = h5py.ExternalLink(str(root / "other.h5"), "x")
    with pytest.raises(UserError, match="no data set 'x' with values in the same file"):
        open_images("pcam", root=root)
    with h5py.File(file, "w") as damaged:
        damaged["x"] = np.zeros((2, 96, 96), dtype=np.uint8)
    with pytest.raises(UserError, match="expected uint8 and"):
        open_images("pcam", root=root)
    file.write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="incomplete or damaged"):
        open_images("pcam", root=root)


def test_pcam__a_file_that_changed_is_an_unreadable_image(root):
    MAKE["pcam"](root)
    images = pickle.loads(pickle.dumps(open_images("pcam", root=root)))
    (root / "pcam" / "camelyonpatch_level_2_split_test_x.h5").write_bytes(b"gone")
    with pytest.raises(UnreadableImage, match=r"image 0 of camelyonpatch_level_2_split_test_x\.h5"):
        images.store.read(4)
