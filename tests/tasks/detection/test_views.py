"""Masks go where their boxes go: through crops, mirrors and other sizes, and under what is pasted over them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors

from paucal.data.dataset import SampleKey
from paucal.tasks.detection.batches import BoxedDataset, BoxSample, collate_boxes
from paucal.tasks.detection.images import open_boxed_images
from paucal.tasks.detection.views import (
    CopyPaste,
    Jitter,
    fit_to_masks,
    make_evaluation_transform,
    make_training_transform,
    paste_objects,
)
from tasks.detection.outlined import write_outlined

PLAIN = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
SIZE = (60, 90)
Corners = tuple[int, int, int, int]


def scene(*corners: Corners, size: tuple[int, int] = SIZE, value: int = 200) -> tuple[tv_tensors.Image, dict]:
    """Return a black image with bright rectangles, their boxes and masks."""
    pixels, masks = torch.zeros(3, *size, dtype=torch.uint8), torch.zeros(len(corners), *size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, corners, strict=True):
        mask[top:bottom, left:right] = 1
        pixels[:, top:bottom, left:right] = value
    boxes = torch.tensor(corners, dtype=torch.float32).reshape(-1, 4)
    target = {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),  # type: ignore[call-overload]
        "labels": torch.arange(len(corners)),
        "masks": tv_tensors.Mask(masks),
    }
    return tv_tensors.Image(pixels), target


def rectangle(box: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the share of each pixel that a box covers."""
    left, top, right, bottom = box.tolist()
    rows, columns = torch.arange(size[0]), torch.arange(size[1])
    down = (torch.minimum(rows + 1, torch.tensor(bottom)) - torch.maximum(rows, torch.tensor(top))).clamp(0, 1)
    across = (torch.minimum(columns + 1, torch.tensor(right)) - torch.maximum(columns, torch.tensor(left))).clamp(0, 1)
    return down[:, None] * across[None]


@pytest.mark.parametrize("jitter", ["none", "light", "large"])
def test_masks__of_rectangles_are_the_changed_boxes(jitter: Jitter):
    view = make_training_transform([90], *PLAIN, hflip=0.5, jitter=jitter)
    counts = []
    for seed in range(25):
        torch.manual_seed(seed)
        image, target = view(*scene((5, 10, 31, 40), (50, 20, 88, 58), (70, 2, 80, 12)))
        size = (int(image.shape[-2]), int(image.shape[-1]))
        masks, boxes = target["masks"], target["boxes"].as_subclass(Tensor)
        assert masks.shape == (len(boxes), *size)
        assert len(target["labels"]) == len(boxes)
        counts.append(len(boxes))
        for mask, box in zip(masks.as_subclass(Tensor), boxes, strict=True):
            share = rectangle(box, size)
            assert bool(mask[share >= 0.99].all())  # but for the pixels at the edges, which round either way
            assert not bool(mask[share == 0].any())
            assert bool((image.as_subclass(Tensor)[0][(mask == 1) & (share >= 0.99)] > 0.05).float().mean() > 0.8)
    assert max(counts) == 3
    assert (min(counts) < 3) == (jitter == "large")


def test_evaluation_view__keeps_every_mask():
    image, target = make_evaluation_transform([180], *PLAIN)(*scene((5, 10, 31, 40)))
    assert image.shape == (3, 120, 180)
    assert np.argwhere(target["masks"][0].numpy()).min(0).tolist() == [20, 10]
    assert int(target["masks"].sum()) == 4 * 26 * 30


def test_fit_to_masks__moves_sides_that_lie_outside_and_drops_what_is_not_seen():
    image, target = scene((10, 10, 30, 30), (40, 10, 60, 30), (70, 10, 80, 30))
    masks = target["masks"].as_subclass(Tensor)
    masks[0][:, 20:] = 0  # its right half is gone
    masks[2] = 0
    exact = target["boxes"].as_subclass(Tensor).clone()
    exact[1] += torch.tensor([-0.4, 0.3, 0.6, -0.2])  # what annotators draw
    target["boxes"] = tv_tensors.wrap(exact, like=target["boxes"])
    found = fit_to_masks(image, target)[1]
    assert found["labels"].tolist() == [0, 1]
    assert found["boxes"][0].tolist() == [10, 10, 20, 30]
    torch.testing.assert_close(found["boxes"][1].as_subclass(Tensor), exact[1])
    assert isinstance(found["boxes"], tv_tensors.BoundingBoxes)
    without = {name: value for name, value in target.items() if name != "masks"}
    assert fit_to_masks(image, without)[1] is without
    empty = scene()
    assert fit_to_masks(*empty)[1]["boxes"].shape == (0, 4)


def test_crops__leave_a_round_object_the_box_of_what_is_seen():
    image, target = scene((20, 0, 80, 60), size=(60, 90))
    rows, columns = torch.arange(60)[:, None], torch.arange(90)
    disc = ((rows + 0.5 - 30) ** 2 + (columns + 0.5 - 50) ** 2 < 900).to(torch.uint8)
    target["masks"] = tv_tensors.Mask(disc[None])
    view, cut = make_training_transform([60], *PLAIN, hflip=0, jitter="large"), 0
    for seed in range(20):
        torch.manual_seed(seed)
        _, seen = view(image, target)
        for mask, box in zip(seen["masks"].as_subclass(Tensor), seen["boxes"].tolist(), strict=True):
            places = torch.nonzero(mask)
            low, high = places.amin(0).tolist(), (places.amax(0) + 1).tolist()
            assert box == pytest.approx([low[1], low[0], high[1], high[0]], abs=1.01)
            cut += int(mask.sum()) < 2000
    assert cut > 3


def test_paste__puts_the_chosen_objects_over_the_first_image():
    first, second = scene((10, 10, 50, 50), (60, 10, 70, 20)), scene((0, 0, 30, 20), (40, 40, 50, 50), value=100)
    image, target = paste_objects(
        (first[0].float(), first[1]), (second[0].float(), second[1]), torch.tensor([True, False]), (25, 35)
    )
    assert float(image[0, 30, 45]) == 100
    assert float(image[0, 30, 30]) == 200
    assert bool((image[:, 25:45, 35:65] == 100).all())
    assert int((image == 100).sum()) == 3 * 20 * 30
    assert target["labels"].tolist() == [1, 0, 0]
    assert target["boxes"].tolist() == [[60, 10, 70, 20], [10, 10, 50, 50], [35, 25, 65, 45]]
    assert int(target["masks"][1].sum()) == 40 * 40 - 20 * 15
    assert not bool((target["masks"][1] * target["masks"][2]).bool().any())
    assert int(target["masks"][2].sum()) == 600


def test_paste__takes_from_boxes_what_is_hidden_and_drops_what_is_gone():
    first = scene((10, 10, 30, 30), (50, 10, 60, 20))
    second = scene((0, 0, 40, 40), (0, 50, 5, 60), value=100)
    seen, other = (first[0].float(), first[1]), (second[0].float(), second[1])
    _, target = paste_objects(seen, other, torch.tensor([True, False]), (5, 20))
    assert target["labels"].tolist() == [0, 0]  # the second object lay under the pasted one
    assert target["boxes"].tolist() == [[10, 10, 20, 30], [20, 5, 60, 45]]
    _, nothing = paste_objects(seen, other, torch.tensor([False, False]), (5, 20))
    assert torch.equal(nothing["boxes"], first[1]["boxes"])
    assert torch.equal(nothing["masks"], first[1]["masks"])


def test_paste__leaves_objects_that_nothing_lies_over_as_they_are():
    image, target = scene((10, 10, 30, 30), (50, 10, 60, 20))
    loose = target["boxes"].as_subclass(Tensor) + torch.tensor([-3.0, -3, 3, 3])  # as some people draw them
    seen = image.float(), {**target, "boxes": tv_tensors.wrap(loose, like=target["boxes"])}  # type: ignore[call-arg]
    other = scene((0, 0, 15, 15), value=100)
    _, made = paste_objects(seen, (other[0].float(), other[1]), torch.tensor([True]), (15, 15))
    assert made["boxes"].tolist() == [[47, 7, 63, 23], [10, 10, 30, 30], [15, 15, 30, 30]]


def test_paste__cuts_objects_at_the_edges_of_the_first_image():
    first, second = scene(size=(40, 50)), scene((30, 20, 70, 50), (0, 0, 5, 5), size=(60, 90), value=100)
    image, target = paste_objects(
        (first[0].float(), first[1]), (second[0].float(), second[1]), torch.ones(2).bool(), (-15, -40)
    )
    assert image.shape == (3, 40, 50)
    assert target["boxes"].tolist() == [[0, 5, 30, 35]]
    assert target["masks"].shape == (1, 40, 50)
    assert int(target["masks"].sum()) == 30 * 30


def read(pasting: CopyPaste | None, folder: Path, seed: int = 0, epoch: int = 0) -> list[BoxSample]:
    dataset = BoxedDataset(open_boxed_images(folder), make_training_transform([96], *PLAIN), seed, pasting)
    return dataset.__getitems__([SampleKey(epoch, index, 0) for index in range(len(dataset))])


def test_copy_paste__adds_objects_of_other_images_by_the_seed(tmp_path: Path):
    folder = write_outlined(tmp_path / "set", 8).parent
    plain, pasted = read(None, folder), read(CopyPaste(1.0, range(8)), folder)
    again, other = read(CopyPaste(1.0, range(8)), folder), read(CopyPaste(1.0, range(8)), folder, epoch=1)
    assert sum(len(one.labels) for one in pasted) > sum(len(one.labels) for one in plain)
    assert all(
        torch.equal(a.image, b.image) and torch.equal(a.boxes, b.boxes) for a, b in zip(pasted, again, strict=True)
    )
    assert not all(
        a.image.shape == b.image.shape and torch.equal(a.image, b.image) for a, b in zip(pasted, other, strict=True)
    )
    for one in pasted:
        assert one.masks is not None
        assert one.masks.shape == (len(one.boxes), *one.image.shape[1:])
        assert bool(one.masks.bool().flatten(1).any(1).all())
        assert int(one.masks.sum(0).max()) <= 1  # what lies over an object hides it
    never = read(CopyPaste(0.0, range(8)), folder)
    assert [len(one.labels) for one in never] == [len(one.labels) for one in plain]


def test_partners__are_other_images_of_those_given():
    pasting = CopyPaste(1.0, [2, 5])
    torch.manual_seed(0)
    drawn = [pasting.draw_source_index(2) for _ in range(40)]
    assert set(drawn) == {None, 5}
    assert CopyPaste(1.0, []).draw_source_index(0) is None
    share = sum(CopyPaste(0.3, [1]).draw_source_index(0) is not None for _ in range(1000)) / 1000
    assert share == pytest.approx(0.3, abs=0.05)


def test_batches__keep_the_masks_of_each_image(tmp_path: Path):
    samples = read(None, write_outlined(tmp_path / "set", 3).parent)
    batch = collate_boxes(samples)
    assert batch.masks is not None
    assert all(torch.equal(mask, one.masks) for mask, one in zip(batch.masks, samples, strict=True))  # type: ignore[arg-type]
    moved = batch.to("cpu").masks
    assert moved is not None
    assert [one.shape[1:] for one in moved] == [tuple(size) for size in batch.image_sizes()]
    assert collate_boxes([one._replace(masks=None) for one in samples]).masks is None
