"""Model cards of segmentation, and the pictures of masks."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.backbones import BackboneSpec
from paucal.data.masks.coding import IGNORED, MaskCoding
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.tasks.segmentation.model import HeadOptions, SegmentationCard
from paucal.tasks.segmentation.pictures import (
    class_colours,
    draw_comparison,
    draw_legend,
    draw_mistakes,
    draw_overlay,
    stack_vertically,
)
from paucal.types import UserError


def card(**changes) -> SegmentationCard:
    values = {
        "backbone": BackboneSpec("test_resnet", 0, image_size=(64, 96)),
        "classes": ("ground", "road"),
        "preprocessing": Preprocessing((64, 96), 1.0, "bilinear", (0.5,) * 3, (0.2,) * 3),
        "head": HeadOptions(8, 0.1),
        "coding": MaskCoding("colour", (0, 0x804080), 0xFFFFFF),
        "overlap": 0.25,
    }
    return SegmentationCard(**{**values, **changes})


def test_card__is_read_back_as_it_was_written():
    assert SegmentationCard.from_dict(card().to_dict()) == card()
    assert card().build().eval()(torch.zeros(1, 3, 64, 96)).shape == (1, 2, 64, 96)


def test_older_cards__open_with_windows_on_images_of_their_own_size():
    whole = card(whole=True, resize_to=(64, 256))
    assert SegmentationCard.from_dict(whole.to_dict()) == whole
    older = {name: value for name, value in whole.to_dict().items() if name not in ("whole", "resize_to")}
    assert SegmentationCard.from_dict(older) == card()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("task",), "detection", "for detection, expected segmentation"),
        (("format",), 9, "format 9"),
        (("head", "width"), 10**9, "head of width"),
        (("head", "width"), "8", "head of width"),
        (("classes",), ["a"], "must name the 2 classes"),
        (("classes",), ["a"] * 10**4, "must name the 2 classes"),
        (("masks", "values"), [0, 0], "different values"),
        (("masks", "values"), [-1, 0], "from 0"),
        (("masks", "kind"), "odd", "kind 'odd'"),
        (("overlap",), 1.0, "overlap by 1.0"),
        (("whole",), 1, "has whole 1"),
        (("resize_to",), [64], "two sides"),
        (("resize_to",), [64, "256"], "two sides"),
        (("resize_to",), [64, 10**6], "two sides"),
        (("preprocessing", "image_size"), [32, 32], "has preprocessing for"),
        (("preprocessing", "mean"), [0.5], "numbers, as for std|channels"),
        (("backbone", "name"), "no_such_model", "no_such_model"),
    ],
)
def test_damaged_cards__are_refused(place, value, words):
    content = copy.deepcopy(card().to_dict())
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(UserError, match=words):
        SegmentationCard.from_dict(content)


def test_cards_without_an_entry__are_refused():
    for name in ("head", "masks", "classes", "preprocessing", "backbone", "overlap"):
        content = {key: value for key, value in card().to_dict().items() if key != name}
        with pytest.raises(UserError, match="not a model card for segmentation"):
            SegmentationCard.from_dict(content)


def test_a_classifiers_card__is_none_of_these_and_the_other_way_round():
    with pytest.raises(UserError, match="is for segmentation, expected classification: give a run of 'paucal train'"):
        ModelCard.from_dict(card().to_dict())
    plain = ModelCard(BackboneSpec("test_resnet", 2, image_size=(64, 96)), ("a", "b"), card().preprocessing)
    with pytest.raises(UserError, match="is for classification, expected segmentation: give a run of 'paucal segment'"):
        SegmentationCard.from_dict(plain.to_dict())


def test_overlays__show_colours_of_classes_and_grey_where_nobody_labelled():
    image = Image.fromarray(np.full((2, 2, 3), 100, np.uint8))
    mask = np.asarray([[0, 1], [IGNORED, 1]], np.uint8)
    colours = class_colours(MaskCoding("index", (0, 1)))
    assert colours.tolist() == [[0, 0, 0], [128, 0, 0]]
    overlay = np.asarray(draw_overlay(image, mask, colours))
    assert overlay[0, 0].tolist() == [55, 55, 55]
    assert overlay[0, 1].tolist() == [113, 55, 55]
    assert overlay[1, 0].tolist() == [113, 113, 113]


def test_differences__are_red_and_what_is_right_green():
    mistakes = np.asarray(draw_mistakes(np.asarray([[0, 1, IGNORED]], np.uint8), np.asarray([[0, 0, 1]], np.uint8)))
    assert [pixel.argmax() for pixel in mistakes[0, :2]] == [1, 0]
    assert len(set(mistakes[0, 2].tolist())) == 1


def test_sheets__hold_everything_whatever_the_names():
    image = Image.fromarray(np.zeros((20, 30, 3), np.uint8))
    mask = np.zeros((20, 30), np.uint8)
    colours = class_colours(MaskCoding("index", tuple(range(30))))
    sheet = draw_comparison(image, mask, mask, colours, "пример.png: 10 %")
    assert sheet.width > 4 * 30
    names = draw_legend([f"klass {n} \x1b" + "x" * 99 for n in range(30)], colours)
    assert names.height == 13 * 18
    both = stack_vertically([sheet, names])
    assert both.width == max(sheet.width, names.width)


@pytest.mark.parametrize("width", [12, 80])
def test_comparison__has_its_titles_above_its_columns(width):
    image = Image.new("RGB", (width, 10), (200, 30, 40))
    mask = np.zeros((10, width), np.uint8)
    colours = np.asarray([[0, 0, 255]], np.uint8)
    sheet = np.asarray(draw_comparison(image, mask, mask, colours, "one"))
    column = max(width, 56) + 6
    assert sheet.shape == (10 + 2 * 14, 4 * column - 6, 3)
    titles = sheet[14:28].min(axis=(0, 2)) < 128
    for place in range(4):
        assert titles[place * column : place * column + 56].any()
        assert not titles[place * column + 56 : (place + 1) * column].any()  # no title runs into the next
    assert (sheet[28:, :width] == (200, 30, 40)).all()
    assert np.array_equal(sheet[28:, 3 * column : 3 * column + width], np.asarray(draw_mistakes(mask, mask)))
    assert not np.array_equal(sheet[14:28, :56], sheet[14:28, column : column + 56])
