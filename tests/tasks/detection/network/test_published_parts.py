"""The parts of the published detectors against plain loops: pooling, matches, losses, cascades."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from paucal.backbones.empty_models import meta_device
from paucal.objectives.finetuning import FineTuning
from paucal.tasks.detection.network.cascade import CascadeHeads, likeliest_class
from paucal.tasks.detection.network.detector import Detector, build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.network.proposals import ObjectMatcher
from paucal.tasks.detection.network.region_heads import AlignedPooling, RegionHeads
from paucal.tasks.detection.objective import DetectionObjective
from tasks.detection.network.test_detector import SPECS, START, TINY, batch

PUBLISHED = {
    "detector": DetectorOptions(
        **TINY,
        finest=4,
        box_loss="l1",
        proposal_loss="l1",
        matching="regions",
        candidates=128,
        pooling="aligned",
        pyramid_norm="none",
    ),
    "cascade": DetectorOptions(
        **TINY,
        finest=4,
        cascade=True,
        head="4conv1fc",
        cascade_boxes="per-class",
        cascade_average="logits",
        box_loss="giou",
        matching="anchors",
        pooling="aligned",
        pyramid_norm="none",
    ),
}
every_kind = pytest.mark.parametrize("kind", PUBLISHED)
seeded = pytest.mark.parametrize("seed", range(12))


def made(kind: str, backbone: str = "convolutional") -> Detector:
    torch.manual_seed(0)
    return build_detector(SPECS[backbone], 3, PUBLISHED[kind])


def random_boxes(count: int, generator: torch.Generator, side: float = 90.0) -> Tensor:
    corner = torch.rand(count, 2, generator=generator) * side * 0.7
    return torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * side * 0.3], 1)


def bilinear(grid: Tensor, row: float, column: float) -> Tensor:
    """Return (C,) of a map (C, H, W) at a point, the centre of its first cell being 0; 0 far outside."""
    height, width = grid.shape[1:]
    if not (-1 <= row <= height and -1 <= column <= width):
        return torch.zeros(len(grid))
    row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
    top, left = math.floor(row), math.floor(column)
    below, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = row - top, column - left
    upper = (1 - across) * grid[:, top, left] + across * grid[:, top, right]
    lower = (1 - across) * grid[:, below, left] + across * grid[:, below, right]
    return (1 - down) * upper + down * lower


def slow_pooling(maps: list[Tensor], strides: tuple[int, ...], box: list[float], cells: int) -> Tensor:
    """Return (C, cells, cells) of one region of an image, point by point."""
    left, top, right, bottom = box
    level = math.floor(4 + math.log2(math.sqrt((right - left) * (bottom - top)) / 224) + 1e-6)
    place = min(max(level - int(math.log2(strides[0])), 0), len(strides) - 1)
    grid, stride = maps[place], strides[place]
    height, width = (bottom - top) / stride / cells, (right - left) / stride / cells
    rows, columns = math.ceil(height), math.ceil(width)
    pooled = torch.zeros(len(grid), cells, cells)
    for down in range(cells):
        for across in range(cells):
            points = [
                bilinear(
                    grid,
                    top / stride - 0.5 + height * (down + (i + 0.5) / rows),
                    left / stride - 0.5 + width * (across + (j + 0.5) / columns),
                )
                for i in range(rows)
                for j in range(columns)
            ]
            pooled[:, down, across] = torch.stack(points).mean(0)
    return pooled


@seeded
def test_aligned_pooling__is_the_mean_of_the_points_of_each_cell(seed: int):
    generator = torch.Generator().manual_seed(seed)
    strides = ((4, 8, 16, 32), (8, 16, 32), (16,))[seed % 3]
    maps = {str(n): torch.randn(2, 3, 512 // s, 384 // s, generator=generator) for n, s in enumerate(strides)}
    boxes = [random_boxes(3, generator, side) for side in (60.0, 500.0)]
    boxes[1] = boxes[1].clamp(max=380)
    found = AlignedPooling(strides, 3)(maps, boxes, [(512, 384)] * 2)
    flat = [(image, box.tolist()) for image, some in enumerate(boxes) for box in some]
    for one, (image, box) in zip(found, flat, strict=True):
        expected = slow_pooling([maps[str(n)][image] for n in range(len(strides))], strides, box, 3)
        torch.testing.assert_close(one, expected, atol=1e-4, rtol=1e-4)


def slow_matches(overlaps: Tensor, hit: float, miss: float, least: float) -> list[int]:
    """Return the object of each region: of its own overlaps first, then of the objects that overlap it most."""
    found = []
    for region in overlaps.T.tolist():
        best = max(region)
        found.append(region.index(best) if best >= hit else -1 if best < miss else -2)
    for place, row in enumerate(overlaps.tolist()):
        best = max(row, default=0.0)
        if best >= least:
            found = [place if value == best else one for value, one in zip(row, found, strict=True)]
    return found


@seeded
def test_matches__give_each_object_the_regions_that_overlap_it_most(seed: int):
    generator = torch.Generator().manual_seed(seed)
    objects, regions = random_boxes(1 + seed % 4, generator, 40.0), random_boxes(40, generator, 40.0)
    regions[3], regions[7] = regions[4], objects[0]  # a tie, and a hit
    overlaps = box_iou(objects, regions)
    for hit, miss, least in ((0.7, 0.3, 0.3), (0.5, 0.5, 0.5), (0.7, 0.3, 0.0)):
        expected = slow_matches(overlaps, hit, miss, least)
        assert ObjectMatcher(hit, miss, least)(overlaps).tolist() == expected
        own = box_iou(objects, torch.cat([regions, objects]))
        found = ObjectMatcher(hit, miss, least, with_objects=True)(own)
        assert found[: len(regions)].tolist() == expected
    assert ObjectMatcher(0.5, 0.5, 0.5, with_objects=True)(box_iou(objects, objects)).tolist() == [*range(len(objects))]


def test_regions__that_overlap_one_object_more_may_learn_another_that_has_none_better():
    objects = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 4.0, 10.0, 14.0]])
    regions = torch.tensor([[0.0, 1.9, 10.0, 11.9], [0.0, 0.0, 10.0, 10.0]])  # overlaps of 0.68 and 0.65, of 1 and 0.43
    heads = made("detector").heads
    assert isinstance(heads, RegionHeads)
    (matched,), (labels,) = heads.assign_targets_to_proposals(
        [torch.cat([regions, objects])], [objects], [torch.tensor([1, 2])]
    )
    assert (matched[:2].tolist(), labels[:2].tolist()) == ([1, 0], [2, 1])
    plain = build_detector(SPECS["convolutional"], 3, DetectorOptions(**TINY)).heads
    assert isinstance(plain, RegionHeads)
    (matched,), _ = plain.assign_targets_to_proposals(
        [torch.cat([regions, objects])], [objects], [torch.tensor([1, 2])]
    )
    assert matched[:2].tolist() == [0, 0]


def slow_giou(one: list[float], two: list[float]) -> float:
    def area(box: list[float]) -> float:
        return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)

    both = [max(one[0], two[0]), max(one[1], two[1]), min(one[2], two[2]), min(one[3], two[3])]
    around = [min(one[0], two[0]), min(one[1], two[1]), max(one[2], two[2]), max(one[3], two[3])]
    union = area(one) + area(two) - area(both)
    return area(both) / union - (area(around) - union) / area(around)


@seeded
def test_giou__is_that_of_the_corrected_boxes_of_hits_over_all_regions(seed: int):
    generator = torch.Generator().manual_seed(seed)
    heads = made("cascade").heads
    assert isinstance(heads, CascadeHeads)
    head = heads.heads[seed % 3]
    regions, objects = random_boxes(6, generator), random_boxes(6, generator)
    labels = torch.tensor([0, 2, 1, 0, 3, 1])
    deltas = torch.randn(6, 4, generator=generator)
    wanted = head.box_coder.encode([objects], [regions])[0]
    corrected = head.box_coder.decode_single(deltas, regions)
    expected = sum(
        1 - slow_giou(corrected[row].tolist(), objects[row].tolist()) for row in range(6) if int(labels[row])
    )
    assert float(head._box_loss(deltas, labels, wanted, regions)) == pytest.approx(expected / 6, rel=1e-3)


def test_l1__is_the_sum_of_differences_over_all_that_are_drawn():
    detector = made("detector")
    assert isinstance(detector.heads, RegionHeads)
    deltas, wanted = torch.randn(4, 4), torch.randn(4, 4)
    labels = torch.tensor([0, 1, 0, 2])
    expected = sum(abs(float(deltas[row, n] - wanted[row, n])) for row in (1, 3) for n in range(4)) / 4
    assert float(detector.heads._box_loss(deltas, labels, wanted, deltas)) == pytest.approx(expected, rel=1e-5)
    positive = torch.tensor([1.0, 0.0, 1.0, -1.0])
    _, found = detector.proposals.compute_loss(torch.zeros(4, 1), deltas, [positive], [wanted])
    expected = sum(abs(float(deltas[row, n] - wanted[row, n])) for row in (0, 2) for n in range(4)) / 3
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "training", "testing"),
    [
        ({}, (2000, 2000), (1000, 1000)),
        ({"proposals": 500}, (500, 500), (250, 250)),
        ({"proposals": 64}, (64, 64), (100, 100)),  # never fewer than detections
        ({"proposals": 1000, "candidates": 2000}, (2000, 1000), (1000, 1000)),  # the published Mask R-CNN
        ({"proposals": 2000, "candidates": 2000}, (2000, 2000), (1000, 1000)),  # the published cascade
    ],
)
def test_proposals__are_as_many_as_published(options: dict, training: tuple[int, int], testing: tuple[int, int]):
    with meta_device():
        detector = build_detector(SPECS["convolutional"], 3, DetectorOptions(**{**TINY, "proposals": 2000, **options}))
    found = detector.proposals
    for mode, expected in ((True, training), (False, testing)):
        found.train(mode)
        assert (found.pre_nms_top_n(), found.post_nms_top_n()) == expected


@every_kind
@pytest.mark.parametrize("backbone", ["convolutional", "stages"])
def test_losses__reach_every_parameter_and_have_the_published_weights(kind: str, backbone: str):
    objective = DetectionObjective(made(kind, backbone), FineTuning()).train()
    torch.manual_seed(1)
    terms = objective(batch(), START)
    terms.total.backward()
    assert [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None] == []
    if kind == "detector":
        assert terms.weights == {"box": 1.0}
    else:
        assert terms.weights == {
            **{"class_1": 1.0, "class_2": 0.5, "class_3": 0.25},
            **{"box_1": 10.0, "box_2": 5.0, "box_3": 2.5},
        }


@every_kind
def test_images_without_objects__teach_that_there_is_none(kind: str):
    values = DetectionObjective(made(kind), FineTuning()).train()(batch(boxes=False), START).values
    assert all(bool(torch.isfinite(value)) for value in values.values())
    assert all(float(value.detach()) == 0 for name, value in values.items() if name.startswith(("box", "proposal")))


def test_published_heads__are_four_convolutions_with_norms_and_a_box_for_each_class():
    heads = made("cascade").heads
    assert isinstance(heads, CascadeHeads)
    for head in heads.heads:
        kinds = [type(part) for part in head.box_head.modules() if not list(part.children())]
        assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * 4 + [nn.Flatten, nn.Linear, nn.ReLU]
        assert all(part.bias is None for part in head.box_head.modules() if isinstance(part, nn.Conv2d))
        assert head.box_predictor.bbox_pred.out_features == 4 * (3 + 1)


def test_logits__are_averaged_over_the_three_heads():
    detector, seen = made("cascade").eval(), batch()
    heads = detector.heads
    assert isinstance(heads, CascadeHeads)
    said: list[Tensor] = []
    for head in heads.heads:
        head.box_predictor.register_forward_hook(lambda module, given, made: said.append(made[0]))
    with torch.no_grad():
        found = detector(seen.images[:1], seen.image_sizes()[:1])[0]
    mean = torch.stack(said).mean(0).softmax(-1)[:, 1:]
    assert len(found["scores"])
    for score, label in zip(found["scores"][:5], found["labels"][:5], strict=True):
        assert bool(torch.isclose(mean[:, label], score, atol=1e-6).any())


def test_next_heads__get_the_box_of_the_own_class_or_of_the_likeliest():
    heads = made("cascade").heads
    assert isinstance(heads, CascadeHeads)
    logits = torch.tensor([[9.0, 1.0, 3.0, 2.0], [0.0, 5.0, 1.0, 1.0]])
    assert likeliest_class(logits).tolist() == [2, 1]  # the background is no class
    deltas = torch.zeros(2, 16)
    deltas[:, 8:12] = torch.tensor([1.0, 0.0, 0.0, 0.0])  # of class 2: a tenth of the width to the right
    regions = [torch.tensor([[10.0, 10.0, 30.0, 30.0], [10.0, 10.0, 30.0, 30.0]])]
    (moved,) = heads.heads[0].refine(deltas, likeliest_class(logits), regions, [(100, 100)])
    torch.testing.assert_close(moved, torch.tensor([[12.0, 10.0, 32.0, 30.0], [10.0, 10.0, 30.0, 30.0]]))


@pytest.fixture
def half() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


@every_kind
def test_boxes__stay_exact_in_half_precision(kind: str, half):
    """A corner at 1,000 pixels is 4 pixels off in bfloat16; corrections may be, boxes must not."""
    detector, seen = made(kind).train(), batch()
    given: list[Tensor] = []
    stages = detector.heads.heads if isinstance(detector.heads, CascadeHeads) else [detector.heads]
    for head in stages:
        head.box_roi_pool.register_forward_pre_hook(lambda module, inputs: given.extend(inputs[1]))
    torch.manual_seed(0)
    losses = detector.losses(seen.images, seen.image_sizes(), seen.boxes, seen.labels)
    assert all(bool(torch.isfinite(one)) for one in losses.values())
    for boxes in given:
        assert boxes.dtype == torch.float32
        assert not torch.equal(boxes, boxes.bfloat16().float())
