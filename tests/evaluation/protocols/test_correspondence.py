"""Matching cells: the published program's numbers, exact geometry, and oracles on grids that are not square."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paucal.data.dataset import SampleKey, ViewDataset, collate
from paucal.data.images import ImageSet
from paucal.data.stores import ArrayStore
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform
from paucal.evaluation.protocols.correspondence import (
    SecondView,
    match_cells,
    measure_correspondence,
    true_positions,
)
from paucal.types import Features, UserError
from vectors import fill

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "correspondence.json").read_text())["runs"]["mix"]
EXPECTED = RECORDED["expected"]
PLAIN = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
MIRROR = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])


def as_grid(tokens, rows, columns):
    return tokens.T.reshape(1, -1, rows, columns)


@pytest.mark.parametrize("name", EXPECTED)
def test_correspondence__reproduces_the_published_program(name):
    kind, _, noise = name.rpartition(" noise ")
    side = {"swin": 7, "deit_small": 14}[kind]
    first = torch.from_numpy(fill.tensor(f"corr.{kind}.view1", (side * side, 16)))
    mirrored = first.view(side, side, 16).flip(1).reshape(-1, 16)
    second = mirrored + float(noise) * torch.from_numpy(fill.tensor(f"corr.{kind}.noise", (side * side, 16)))
    positions = true_positions(PLAIN, MIRROR, (side, side))
    found = match_cells(as_grid(first, side, side), as_grid(second, side, side), positions, (224, 224))
    expected = EXPECTED[name]
    assert found.cells[0].tolist() == expected["matches"]
    assert float(found.accuracy) == pytest.approx(expected["accuracy"], abs=1e-6)
    assert float(found.distance) == pytest.approx(expected["distance"], rel=1e-6)
    if "order" in expected:
        assert found.order[0, :12].tolist() == expected["order"]
        eleventh = found.similarity[0, found.order[0, 10]]
        assert float(eleventh) == pytest.approx(expected["similarity_at_break"], rel=1e-5)


def test_match__equals_a_naive_loop_on_grids_that_are_not_square():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 8, 3, 5, generator=generator), torch.randn(2, 8, 4, 6, generator=generator)
    positions = torch.rand(2, 15, 2, generator=generator) * 3 - 1.5
    found = match_cells(first, second, positions, (64, 96), top=6)
    for image in range(2):
        pairs = []
        for cell in range(15):
            one = first[image, :, cell // 5, cell % 5]
            cosines = [
                float(torch.cosine_similarity(one, second[image, :, row, column], 0))
                for row in range(4)
                for column in range(6)
            ]
            best = int(np.argmax(cosines))
            assert int(found.cells[image, cell]) == best
            x, y = ((positions[image, cell] + 1) / 2 * torch.tensor([6, 4])).floor().tolist()
            if 0 <= x < 6 and 0 <= y < 4:
                off = np.hypot((best % 6 - x) * 16, (best // 6 - y) * 16)
                pairs.append((cosines[best], off))
        best_pairs = [off for _, off in sorted(pairs, reverse=True)[:6]]
        assert float(found.accuracy[image]) == pytest.approx(np.mean([off == 0 for off in best_pairs]))
        assert float(found.distance[image]) == pytest.approx(np.mean(best_pairs))


def test_oracle__mirrored_features_are_perfect_and_unmirrored_ones_are_off_by_what_is_known():
    rows, columns, size = 3, 5, (96, 160)
    first = torch.eye(rows * columns).T.reshape(1, -1, rows, columns)
    positions = true_positions(PLAIN, MIRROR, (rows, columns))
    perfect = match_cells(first, first.flip(3), positions, size, top=15)
    assert (float(perfect.accuracy), float(perfect.distance)) == (1.0, 0.0)
    blind = match_cells(first, first, positions, size, top=15)
    off = [abs(columns - 1 - 2 * column) * 32 for column in range(columns)]
    assert float(blind.distance) == pytest.approx(np.mean(off))
    assert float(blind.accuracy) == pytest.approx(1 / columns)


def test_positions__of_a_known_crop():
    # The second view is the left half of the image, mirrored: its x runs from the middle to the left edge.
    half = torch.tensor([[[-0.5, 0, -0.5], [0, 1, 0]]])
    found = true_positions(PLAIN, half, (1, 4))[0]
    torch.testing.assert_close(found[:, 0], torch.tensor([0.5, -0.5, -1.5, -2.5]))
    assert (found[:, 1] == 0).all()


def test_cells_without_a_truth_are_not_scored():
    first = torch.eye(4).T.reshape(1, 4, 1, 4)
    positions = torch.tensor([[[-0.75, 0.0], [5.0, 0.0], [0.25, 0.0], [0.0, 2.0]]])
    found = match_cells(first, first, positions, (32, 128), top=10)
    assert (float(found.accuracy), float(found.distance)) == (1.0, 0.0)
    assert found.order[0, :2].tolist() == [0, 2]


class Coordinates(torch.nn.Module):
    """A backbone whose cells hold the mean colour of their pixels: red says where, in x, and green in y."""

    def __init__(self, grid):
        super().__init__()
        self.grid = grid

    def forward(self, images):
        colour = torch.nn.functional.adaptive_avg_pool2d(images, self.grid)
        waves = [torch.cos(k * colour) for k in (1, 2, 4)]
        return Features([torch.cat([*waves, colour.sin()], 1)], colour.mean((2, 3)), None)


@pytest.mark.parametrize("change", ["mirror", "crop"])
def test_views__tell_the_true_place_of_every_pixel(change, monkeypatch):
    # Without colour changes, an image of its own coordinates is matched nearly perfectly: the geometry is right.
    height, width = 48, 80
    y, x = np.meshgrid(np.linspace(0, 255, height), np.linspace(0, 255, width), indexing="ij")
    pixels = np.stack([x, y, 0 * x], 2).astype(np.uint8)[None].repeat(6, 0)
    images = ImageSet("toy", "toy", (), [str(i) for i in range(6)], np.full(6, -1), [""] * 6, ArrayStore(pixels))
    first = EvalTransform((48, 80), Normalisation((0, 0, 0), (0.5, 0.5, 0.5)), 1.0)
    second = SecondView(change, first)
    monkeypatch.setattr(second, "_colours", lambda image: image)
    dataset = ViewDataset(images, [(first, 1), (second, 1)], 0, with_labels=False, with_geometry=True)
    batch = collate([dataset[SampleKey(0, index)] for index in range(6)])
    accuracy, distance = measure_correspondence(Coordinates((3, 5)), [batch], "cpu", top=5)
    assert float(distance.mean()) < 8  # a cell has 16 pixels; a crop's cells need not lie on those of the other
    if change == "mirror":
        assert accuracy.tolist() == [1.0] * 6
    else:
        thetas = batch.geometry[1]
        assert len({tuple(theta.flatten().tolist()) for theta in thetas}) == 6
        assert float(accuracy.mean()) > 0.6


def test_views__change_colours_and_depend_on_the_sample_alone():
    noise = np.random.default_rng(0).integers(0, 255, (3, 40, 40, 3)).astype(np.uint8)
    images = ImageSet("toy", "toy", (), ["a", "b", "c"], np.full(3, -1), [""] * 3, ArrayStore(noise))
    first = EvalTransform((32, 32), Normalisation((0, 0, 0), (1, 1, 1)), 1.0)
    dataset = ViewDataset(
        images, [(first, 1), (SecondView("mirror", first), 1)], 0, with_labels=False, with_geometry=True
    )
    once, again = dataset[SampleKey(0, 1)], dataset[SampleKey(0, 1)]
    assert torch.equal(once.views[1], again.views[1])
    red, green, blue = once.views[1]
    assert torch.equal(red, green)
    assert torch.equal(green, blue)  # the published view is always grey
    assert once.geometry[1].tolist() == [[-1, 0, 0], [0, 1, 0]]


def test_true_positions__of_equal_views_are_in_the_middle_of_the_cells():
    whole = torch.eye(2, 3)[None]
    expected = [[[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]]
    assert true_positions(whole, whole, (2, 2)).tolist() == expected


def test_correspond__refuses_a_single_cell():
    with pytest.raises(UserError, match="the last feature map is 1x1"):
        measure_correspondence(Coordinates((1, 1)), [], "cpu")
