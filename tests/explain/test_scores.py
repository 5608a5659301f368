"""Deletion, insertion and pointing against what they must give for models that are understood."""

import pytest
import torch
from torch import Tensor, nn

from paucal.explain import scores as explain_scores
from paucal.explain.figures.cells import OffsetView, all_pairs
from paucal.explain.scores import (
    area_under_curve,
    as_table_rows,
    paste_objects,
    perturbation_curve,
    pointing_hits,
    rank_cells,
    resize_to_cells,
    score_methods,
)


class LooksAtOneCell(nn.Module):
    """Answers class 1 as far as the cell in row 2 and column 5 of an 8x8 grid is bright."""

    in_chans, num_classes = 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        bright = x[:, :, 16:24, 40:48].mean((1, 2, 3))
        return torch.stack((torch.zeros_like(bright), self.factor * bright - 5), 1)


def truth() -> Tensor:
    found = torch.zeros(1, 8, 8)
    found[0, 2, 5] = 1.0
    return found


def picture() -> Tensor:
    image = torch.zeros(1, 3, 64, 64)
    image[:, :, 16:24, 40:48] = 1.0
    return image


def test_curves__fall_and_rise_at_once_for_the_true_map_and_at_the_end_for_its_opposite() -> None:
    low, high = (torch.tensor(x).sigmoid().item() for x in (-5.0, 5.0))
    one, model = torch.tensor([1]), LooksAtOneCell()
    for maps, first in ((truth(), 1), (-truth(), 8)):
        falling = perturbation_curve(model, picture(), maps, one, steps=8)[0].tolist()
        assert falling == pytest.approx([high] * first + [low] * (9 - first), abs=1e-4)
        rising = perturbation_curve(model, picture(), maps, one, insert=True, steps=8)[0]
        assert bool((rising[first:] > 0.99).all())
        assert bool((rising[:first] < 0.2).all())
    assert area_under_curve(torch.tensor([[0.0, 1.0, 1.0]])).item() == pytest.approx(0.75)


def test_ranks__count_every_cell_once_and_finer_maps_are_averaged() -> None:
    maps = torch.rand(3, 32, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(resize_to_cells(maps)[:, 0, 0], maps[:, :4, :6].mean((1, 2)))
    ranks = rank_cells(maps)
    assert all(sorted(one.flatten().tolist()) == list(range(64)) for one in ranks)
    assert torch.equal(ranks[0].flatten().argmin(), resize_to_cells(maps)[0].flatten().argmax())


def test_pasted_objects__lie_in_their_boxes_and_are_of_another_class() -> None:
    images = torch.stack([torch.full((3, 20, 30), float(label)) for label in (0, 1, 2)])
    pasted = paste_objects(images, torch.tensor([0, 1, 2]), torch.Generator().manual_seed(0))
    for index, (image, label, box) in enumerate(zip(pasted.images, pasted.classes, pasted.boxes.tolist(), strict=True)):
        top, left, bottom, right = box
        assert (bottom - top, right - left) == (10, 15)
        assert label != index
        expected = torch.full((3, 20, 30), float(index))
        expected[:, top:bottom, left:right] = float(label)
        torch.testing.assert_close(image, expected)
    alone = paste_objects(images, torch.tensor([1, 1, 1]), torch.Generator().manual_seed(0))
    assert len(alone.images) == 0


def test_pointing__knows_the_place() -> None:
    boxes = torch.tensor([[0, 32, 32, 64], [0, 32, 32, 64], [8, 8, 40, 40]])
    maps = torch.zeros(3, 4, 4)
    maps[0, 0, 3] = maps[1, 3, 0] = 1.0
    hit, mass = pointing_hits(maps, boxes, (64, 64))
    assert hit[:2].tolist() == [1.0, 0.0]
    torch.testing.assert_close(mass, torch.tensor([1.0, 0.0, 0.25]))  # a map without values is as good as chance
    even = torch.ones(1, 4, 4)
    torch.testing.assert_close(pointing_hits(even, boxes[2:], (64, 64))[1], torch.tensor([0.25]))


def test_comparison__puts_the_true_map_above_the_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(model: nn.Module, images: Tensor, classes: Tensor, method: str) -> Tensor:
        return truth().expand(len(images), 8, 8)

    monkeypatch.setattr(explain_scores, "attribute", known)
    images = picture().repeat(6, 1, 1, 1)
    scores = score_methods(LooksAtOneCell(), [(images, torch.tensor([0, 1, 0, 1, 0, 1]))], ["truth"], steps=8)
    assert scores["truth"].faithfulness > scores["random"].faithfulness + 0.2
    assert scores["truth"].images == 6
    assert [row["method"] for row in as_table_rows(scores)] == ["truth", "random"]
    again = score_methods(LooksAtOneCell(), [(images, torch.tensor([0, 1, 0, 1, 0, 1]))], ["truth"], steps=8)
    assert again == scores
    alike = (images, torch.zeros(6, dtype=torch.long))  # no image of another class to paste
    both = score_methods(LooksAtOneCell(), [(images, torch.tensor([0, 1, 0, 1, 0, 1])), alike], ["truth"], steps=8)
    assert (scores["truth"].pasted, both["truth"].images, both["truth"].pasted) == (6, 12, 6)


def test_offsets__of_all_pairs_and_their_errors() -> None:
    pairs = all_pairs((2, 3))
    assert pairs.shape == (1, 36, 2, 2)
    true = (pairs[0, :, 0] - pairs[0, :, 1]).float().view(6, 6, 2)
    exact = OffsetView(true, true, (2, 3), signed=True)
    assert exact.mean_error() == 0
    off = OffsetView(true + torch.tensor([1.0, -2.0]), true, (2, 3), signed=True)
    assert off.mean_error() == pytest.approx(3)
    torch.testing.assert_close(off.error_map(), torch.full((2, 3), 3.0))
    still = OffsetView(torch.zeros(6, 6, 2), true, (2, 3), signed=True)
    assert exact.chance_error() == pytest.approx(still.mean_error())
