"""Outlines of COCO's files: the same mask from every form, and one sentence for everything that is wrong."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paucal.data.boxes.annotations import unpack_run_lengths
from paucal.tasks.detection.images import open_boxed_images
from paucal.tasks.detection.masks import AnnotatedBox, mask_of_outline, masks_of_outlines, pack_mask, unpack_mask
from paucal.types import UserError
from tasks.detection.made import change, write_coco, write_voc
from tasks.detection.outlined import SIZE, drawn, outline, scenes, write_outlined

DISC = ("disc", 20, 10, 24, 18)
RECTANGLE = ("rectangle", 50, 30, 20, 25)
WHERE = "a.json gives 'a.png' an outline of 'disc'"


def forms(mask: np.ndarray) -> list[dict[str, Any]]:
    """Return both forms of run lengths."""
    runs = pack_mask(mask)
    counts = unpack_run_lengths(runs["counts"]).tolist()
    return [{"size": [*SIZE], "counts": counts}, {"size": [*SIZE], "counts": runs["counts"].decode()}]


def test_polygons__cover_the_pixels_of_their_shape():
    rectangle = unpack_mask(mask_of_outline([outline(*RECTANGLE)], SIZE, WHERE)).astype(bool)
    assert np.array_equal(rectangle, drawn(*RECTANGLE))
    disc = unpack_mask(mask_of_outline([outline(*DISC)], SIZE, WHERE)).astype(bool)
    # Drawing rounds an outline to whole pixels, and 32 points lie on a disc, not around it.
    assert (disc ^ drawn(*DISC)).sum() < 0.1 * drawn(*DISC).sum()
    both = unpack_mask(mask_of_outline([outline(*DISC), outline(*RECTANGLE)], SIZE, WHERE)).astype(bool)
    assert np.array_equal(both, disc | rectangle)


def test_every_form__gives_the_same_mask():
    mask = drawn(*DISC)
    for form in forms(mask):
        assert np.array_equal(unpack_mask(mask_of_outline(form, SIZE, WHERE)), mask)


def test_polygons__over_the_edge_are_cut_there():
    over = mask_of_outline([outline("rectangle", -10, 40, 30, 60)], SIZE, WHERE)
    expected = np.zeros(SIZE, dtype=bool)
    expected[40:, :20] = True
    assert np.array_equal(unpack_mask(over), expected)


GOOD = forms(drawn(*DISC))
HUGE = 10**400
BAD = {
    "a word": ("around it", "expected polygons or run lengths"),
    "numbers": ([1, 2, 3, 4, 5, 6], "expected polygons or run lengths"),
    "odd": ([[1, 1, 9, 1, 9, 9, 3]], "a polygon of 7 coordinates, expected x, y, x, y"),
    "two points": ([[1, 1, 9, 9]], "a polygon of 2 points, expected 3 or more"),
    "no points": ([[]], "a polygon of 0 points"),
    "far outside": ([[1, 1, 9, 1, 9, 900]], "a point at 9 900, far outside the image"),
    "further than numbers go": ([[1, 1, 9, 1, 9, HUGE]], "far outside the image"),
    "infinite": ([[1, 1, 9, 1, 9, float("inf")]], "expected numbers"),
    "not a number": ([[1, 1, 9, 1, 9, float("nan")]], "expected numbers"),
    "true": ([[1, 1, 9, 1, True, 9]], "expected numbers"),
    "too long": ([[0, 0, 96, 64] * 8000], "more than 1,000,000 pixels in length"),
    "too many": ([[1, 1, 2, 1, 2, 2]] * 10_001, "with 10,001 polygons, expected at most 10,000"),
    "another size": ({**GOOD[0], "size": [96, 64]}, "whose size is [96, 64], expected [64, 96] (height, width)"),
    "no size": ({"counts": GOOD[0]["counts"]}, "whose size is None, expected [64, 96]"),
    "a size of true": ({**GOOD[0], "size": [True, 96]}, "whose size is [True, 96], expected [64, 96]"),
    "no counts": ({"size": [*SIZE]}, "expected integers"),
    "empty counts": ({"size": [*SIZE], "counts": []}, "expected integers"),
    "fractions": ({"size": [*SIZE], "counts": [0.5, 6143.5]}, "expected integers"),
    "too few": ({"size": [*SIZE], "counts": [100, 200]}, "do not add up to the image's 6144 pixels"),
    "too much": ({"size": [*SIZE], "counts": [6144, 6144]}, "do not add up"),
    "negative": ({"size": [*SIZE], "counts": [7000, -856]}, "do not add up"),
    "huge": ({"size": [*SIZE], "counts": [2**34, 2**34]}, "do not add up"),
    "larger than 64 bits": ({"size": [*SIZE], "counts": [HUGE]}, "too large for any image"),
    "text of nothing": ({"size": [*SIZE], "counts": "xx"}, "invalid character"),
    "text cut": ({"size": [*SIZE], "counts": GOOD[1]["counts"][:-1]}, "outline of 'disc' with run lengths"),
    "text of another script": ({"size": [*SIZE], "counts": "\ud800é"}, "invalid character"),
    "text of huge numbers": ({"size": [*SIZE], "counts": "oooooo1" * 50}, "do not add up"),
}


@pytest.mark.parametrize("kind", BAD)
def test_outlines__that_cannot_be_meant_are_refused_in_one_sentence(kind: str):
    form, words = BAD[kind]
    with pytest.raises(UserError) as refused:
        mask_of_outline(form, SIZE, WHERE)
    assert words in str(refused.value)
    assert str(refused.value).startswith(WHERE)
    assert str(refused.value).endswith("correct the outline, or ignore all outlines with paucal detect --masks off.")
    assert "\n" not in str(refused.value)


def annotated(outline: Any, corners: tuple[float, float, float, float], is_crowd: bool = False) -> AnnotatedBox:
    return AnnotatedBox(corners, "cat", is_crowd, outline, WHERE)


def test_masks_of__are_missing_for_an_image_where_a_box_has_no_outline():
    box, tally = (50.0, 30.0, 70.0, 55.0), Counter[str]()
    shape = [outline(*RECTANGLE)]
    whole = masks_of_outlines([annotated(shape, box), annotated(shape, box)], SIZE, tally)
    assert whole is not None
    assert len(whole) == 2
    assert tally["without_outline"] == 0
    assert masks_of_outlines([annotated(shape, box), annotated([], box)], SIZE, tally) is None
    assert tally["without_outline"] == 1
    crowd = masks_of_outlines([annotated(shape, box), annotated(None, box, is_crowd=True)], SIZE, tally)
    assert crowd is not None
    assert np.array_equal(unpack_mask(crowd[1]), drawn(*RECTANGLE))
    assert tally["without_outline"] == 1


def test_outlines__without_a_pixel_stand_for_their_box():
    tally = Counter[str]()
    found = masks_of_outlines([annotated([[3.1, 3.1, 3.2, 3.1, 3.2, 3.2]], (3.0, 3.0, 4.0, 4.0))], SIZE, tally)
    assert found is not None
    assert np.argwhere(unpack_mask(found[0])).tolist() == [[3, 3]]
    assert tally["without_pixel"] == 1


def test_outlines__apart_from_their_box_are_refused():
    with pytest.raises(UserError, match="is outside its box"):
        masks_of_outlines([annotated([outline(*DISC)], (60.0, 30.0, 80.0, 50.0))], SIZE, Counter())


def test_sets__have_the_masks_of_their_objects(tmp_path: Path):
    boxed = open_boxed_images(write_outlined(tmp_path / "set").parent)
    assert boxed.without_outline == 0
    for index, (_, rows) in enumerate(scenes(6)):
        masks = boxed.boxes_of(index).masks
        assert masks is not None
        for mask, row in zip(masks, rows, strict=True):
            assert (unpack_mask(mask).astype(bool) ^ drawn(*row)).sum() < 0.1 * drawn(*row).sum()
    assert boxed.images.notes == ()


def test_sets__without_outlines_have_no_masks_and_a_count_of_what_lacks_them(tmp_path: Path):
    file = write_coco(tmp_path / "coco")
    for boxed in (open_boxed_images(file), open_boxed_images(write_voc(tmp_path / "voc"))):
        assert boxed.without_outline == boxed.count_boxes() > 0
        assert all(one.masks is None for one in boxed.boxes.values())
    rows = json.loads(file.read_text())["annotations"]
    left, top, width, height = rows[0]["bbox"]
    rows[0]["segmentation"] = [outline("rectangle", left, top, width, height)]
    change(file, annotations=rows)
    assert open_boxed_images(file).without_outline == len(rows) - 1


def test_unread_outlines__are_not_looked_at(tmp_path: Path):
    file = write_outlined(tmp_path / "set")
    rows = json.loads(file.read_text())["annotations"]
    rows[0]["segmentation"] = "around it"
    change(file, annotations=rows)
    with pytest.raises(UserError, match=r"_annotations.coco.json gives '0.png' \(96x64 pixels\) an outline of"):
        open_boxed_images(file)
    unread = open_boxed_images(file, outlines=False)
    assert unread.without_outline == unread.count_boxes() == len(rows)
