"""Pictures of label maps: the colours are those of the classes, in their places."""

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.data.maps.reader import LabelMaps
from paucal.data.maps.store import LabelMapMetadata, MapWriter, pixel_hash
from paucal.data.sources.opening import open_images
from paucal.labeling.map_figure import draw_label_maps, most_likely_class


def drawn(tmp_path, covered="image", size=(40, 20)):  # size as PIL has it: width first
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", size, (255, 255, 255)).save(tmp_path / "photos" / name / "0.png")
    images = open_images(tmp_path / "photos")
    facts = LabelMapMetadata("a teacher", ("bee", "ant"), (1, 2), 2, covered=covered)
    hashes = [pixel_hash(images.store.read(i)) for i in range(2)]
    writer = MapWriter(tmp_path / "maps", facts, images.keys, hashes)
    values = np.array([[[[9, 9]], [[0, 0]]], [[[9, 2]], [[0, 2]]]])
    # The ant's cells are both "ant"; the bee's are "bee" and undecided.
    indices = np.array([[[[1, 1]], [[0, 0]]], [[[0, 0]], [[1, 1]]]])
    writer.write([0, 1], values, indices)
    figure = draw_label_maps(images, LabelMaps(tmp_path / "maps"))
    return figure, [panel for panel in figure.axes if panel.images]


def test_picture__colours_cells_by_class_and_certainty(tmp_path):
    figure, panels = drawn(tmp_path)
    assert [panel.get_title() for panel in panels] == ["ant", "", "bee", ""]
    ant, bee = (np.asarray(panels[place].images[1].get_array()) for place in (1, 3))
    assert np.array_equal(ant[0, 0, :3], ant[0, 1, :3])
    assert not np.array_equal(ant[0, 0, :3], bee[0, 0, :3])
    assert bee[0, 1, 3] == pytest.approx(bee[0, 0, 3] / 2, rel=1e-3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["bee", "ant"]
    assert panels[1].images[1].get_extent() == pytest.approx([-0.5, 39.5, 19.5, -0.5])


def test_picture__leaves_what_is_not_covered(tmp_path):
    _, panels = drawn(tmp_path, "square")
    assert panels[1].images[1].get_extent() == pytest.approx([9.5, 29.5, 19.5, -0.5])
    assert panels[1].get_xlim() == (-0.5, 39.5)


def test_picture__is_as_high_as_its_images_are(tmp_path):
    (wide, _), (tall, _) = drawn(tmp_path / "wide", size=(40, 20)), drawn(tmp_path / "tall", size=(20, 30))
    for figure in (wide, tall):
        assert figure.get_figwidth() == 12.8
    assert tall.get_figheight() - wide.get_figheight() == pytest.approx(12.8 / 4 * (1.5 - 0.5))


def test_most_likely__counts_the_classes_that_are_not_named():
    classes, shares = most_likely_class(torch.tensor([[[2.0]], [[1.0]]]), torch.tensor([[[7]], [[3]]]), 10)
    weights = np.exp([2.0, 1.0])
    assert classes.tolist() == [[7]]
    assert shares.item() == pytest.approx(weights[0] / (weights.sum() + 8))
