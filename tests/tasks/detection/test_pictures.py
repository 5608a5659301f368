"""Pictures of detections: names as large on every image of a page, and legible on images of any size."""

import numpy as np
import pytest
from PIL import Image

from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.images import Boxes
from paucal.tasks.detection.pictures import COLOURS, TILE_WIDTH, draw_detections, make_contact_sheet, resize_to_width

GREY = (90, 90, 90)


def found_in(size: tuple[int, int]) -> tuple[Detections, Boxes]:
    """Return one object in the middle of an image of (width, height)."""
    width, height = size
    box = np.asarray([[width * 0.25, height * 0.5, width * 0.75, height * 0.9]], np.float32)
    label = np.zeros(1, np.int64)
    return Detections(box, np.asarray([0.9], np.float32), label), Boxes(box, label, label > 0, (height, width))


def label_size(picture: Image.Image) -> tuple[int, int]:
    """Return the (width, height) of what stands above the object, in pixels."""
    pixels = np.asarray(picture)[: picture.height // 2 - 2]
    rows, columns = np.nonzero((pixels != GREY).any(2))
    return int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1


def test_names__are_as_large_on_small_and_on_large_images_of_a_page():
    sizes = []
    for size in ((42, 42), (420, 420), (2100, 2100), (160, 720)):
        found, truth = found_in(size)
        picture = draw_detections(resize_to_width(Image.new("RGB", size, GREY)), found, ("cell",), truth)
        assert picture.size == (TILE_WIDTH, round(size[1] * TILE_WIDTH / size[0]))
        left, top, right, bottom = (float(value) * TILE_WIDTH / size[0] for value in truth.corners[0])
        assert picture.getpixel((round(left), round((top + bottom) / 2))) != GREY
        assert picture.getpixel((round((left + right) / 2), round((top + bottom) / 2))) == GREY
        sizes.append(label_size(picture))
        assert make_contact_sheet([picture]).width >= TILE_WIDTH
    assert len(set(sizes)) == 1
    assert 6 <= sizes[0][1] <= 20


@pytest.mark.parametrize(("width", "height"), [(30, 20), (400, 300), (3000, 2000), (160, 720)])
def test_predicted_pictures__keep_their_size_or_are_enlarged_until_names_fit(width: int, height: int):
    from paucal.verbs.predict.detection import enlarge

    picture = enlarge(Image.new("RGB", (width, height), GREY))
    assert picture.size == (
        (width, height) if width >= TILE_WIDTH else (TILE_WIDTH, round(height * TILE_WIDTH / width))
    )
    found, truth = found_in((width, height))
    drawn = draw_detections(picture, found, ("cell",), truth)
    assert 0.015 < label_size(drawn)[1] / drawn.width < 0.05
    colour = [int(COLOURS[0][place : place + 2], 16) for place in (1, 3, 5)]
    assert (np.asarray(drawn) == colour).all(2).any()
