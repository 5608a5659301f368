"""Several right answers per image: read, assigned to the right images, and counted."""

import json

import pytest
import torch

from paucal.evaluation.predictions import Predictions
from paucal.evaluation.real_labels import match_labels, read_real_labels, real_accuracy
from paucal.types import UserError


def predictions(*guesses):
    logits = torch.nn.functional.one_hot(torch.tensor(guesses), 4).float()
    return Predictions(torch.arange(len(guesses)), logits, torch.zeros(len(guesses), dtype=torch.long))


def test_accuracy__counts_any_right_answer_and_skips_empty_lists():
    found = real_accuracy(predictions(0, 1, 2, 3), [[1, 0], [], [3], [3]])
    assert (found.top1.value, found.images, found.skipped) == (pytest.approx(2 / 3), 3, 1)
    assert found.top1.low < 2 / 3 < found.top1.high
    with pytest.raises(UserError, match="no label for any of the images"):
        real_accuracy(predictions(0), [[]])


def test_answers__of_imagenet_are_found_by_number():
    labels = [[number] for number in range(5)]
    keys = ["val/n02/ILSVRC2012_val_00000004.JPEG", "val/n01/ILSVRC2012_val_00000001.JPEG"]
    assert match_labels(labels, keys) == [[3], [0]]
    with pytest.raises(UserError, match="not for image number 6"):
        match_labels(labels, ["ILSVRC2012_val_00000006.JPEG"])
    with pytest.raises(UserError, match="not for image number"):
        match_labels(labels, ["ILSVRC2012_val_00000000.JPEG"])


def test_answers__of_other_images_are_in_the_order_of_file_names():
    assert match_labels([[0], [1], [2]], ["b/1.png", "a/3.png", "a/2.png"]) == [[0], [2], [1]]
    with pytest.raises(UserError, match="labels for 3 images, but 2 are evaluated"):
        match_labels([[0], [1], [2]], ["a", "b"])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "it is not valid JSON at line 1, column 2"),
        ("[" * 100_000, "it is nested too deeply"),
        ("{}", "not a list of lists"),
        ("[1]", "not a list of lists"),
        ("[[0], [4]]", "contains class 4 for image 1; expected a number from 0 to 3"),
        ("[[true]]", "contains class True"),
        ("[[1.0]]", "contains class 1.0"),
        ("[[-1]]", "contains class -1"),
    ],
)
def test_file__of_something_else_is_refused(tmp_path, text, match):
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(UserError, match=match):
        read_real_labels(tmp_path / "real.json", 4)


def test_file__is_read(tmp_path):
    (tmp_path / "real.json").write_text(json.dumps([[0, 3], []]))
    assert read_real_labels(tmp_path / "real.json", 4) == [[0, 3], []]
    with pytest.raises(UserError, match="there is no file"):
        read_real_labels(tmp_path / "nowhere.json", 4)
