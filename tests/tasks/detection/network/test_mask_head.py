"""The mask heads: torchvision's layers and loss, who learns, and what an answer means in pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.models.detection import maskrcnn_resnet50_fpn
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import roi_align

from paucal.objectives.finetuning import FineTuning
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.detections import rescale
from paucal.tasks.detection.masks import paste_masks, unpack_mask
from paucal.tasks.detection.network.cascade import CascadeHeads
from paucal.tasks.detection.network.detector import Detector, build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.network.region_heads import RegionHeads, mask_layers, mean_masks
from paucal.tasks.detection.objective import DetectionObjective
from tasks.detection.network.test_detector import SPECS, START, TINY, batch, both


def made(cascade: bool = False) -> Detector:
    torch.manual_seed(0)
    return build_detector(SPECS["convolutional"], 3, DetectorOptions(**TINY, finest=8, cascade=cascade, masks=True))


def filled(boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    masks = torch.zeros(len(boxes), *size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    return masks


def masked_batch(boxes: bool = True) -> BoxBatch:
    seen = batch(boxes)
    masks = [filled(one, size) for one, size in zip(seen.boxes, seen.image_sizes(), strict=True)]
    return replace(seen, masks=masks)


def test_layers__are_those_of_torchvisions_mask_rcnn():
    theirs = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91).roi_heads
    for ours, other in zip(mask_layers(256, 90), (theirs.mask_head, theirs.mask_predictor), strict=True):
        shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (ours, other)]
        assert shapes[0] == shapes[1]
        ours.load_state_dict(other.state_dict())
    pools = made().heads.mask_roi_pool, theirs.mask_roi_pool
    assert [(one.output_size, one.sampling_ratio) for one in pools] == [((14, 14), 2)] * 2  # type: ignore[union-attr]


@both
def test_losses__reach_every_parameter_that_may_learn(cascade: bool):
    objective = DetectionObjective(made(cascade), FineTuning()).train()
    torch.manual_seed(1)
    terms = objective(masked_batch(), START)
    terms.total.backward()
    kinds = ("class", "box", "mask")
    names = {f"{kind}_{n}" for kind in kinds for n in (1, 2, 3)} if cascade else set(kinds)
    assert set(terms.values) == {"object", "proposal"} | names
    assert [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None] == []
    layers = [p for name, p in objective.named_parameters() if "mask_head" in name and name.endswith("weight")]
    assert len(layers) == (12 if cascade else 4)
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in layers)
    if cascade:
        assert [terms.weights[f"mask_{n}"] for n in (1, 2, 3)] == [1, 0.5, 0.25]


@both
def test_images_without_objects__teach_masks_nothing(cascade: bool):
    objective = DetectionObjective(made(cascade), FineTuning()).train()
    values = objective(masked_batch(boxes=False), START).values
    masks = [float(value.detach()) for name, value in values.items() if name.startswith("mask")]
    assert masks == [0.0] * (3 if cascade else 1)


def test_mask_loss__is_the_cross_entropy_of_the_own_classs_cells_of_regions_with_an_object():
    detector, seen = made().eval(), masked_batch()
    stage = detector.heads
    assert isinstance(stage, RegionHeads)
    features = {str(n): torch.randn(2, 16, 96 // s, 100 // s) for n, s in enumerate((8, 16, 32))}
    regions = [torch.tensor([[12.0, 18.0, 48.0, 66.0], [0.0, 0.0, 9.0, 9.0]]), torch.tensor([[1.0, 1.0, 30.0, 30.0]])]
    labels, matched = [torch.tensor([3, 0]), torch.tensor([0])], [torch.tensor([1, 0]), torch.tensor([0])]
    assert seen.masks is not None
    targets = [{"masks": one, "labels": label + 1} for one, label in zip(seen.masks, seen.labels, strict=True)]
    kept: list[torch.Tensor] = []
    stage.mask_predictor.register_forward_hook(lambda module, given, answer: kept.append(answer))  # type: ignore[union-attr]
    with torch.no_grad():
        found = stage.mask_loss(features, regions, matched, labels, seen.image_sizes(), targets)
    logits = kept[0]
    assert logits.shape == (1, 4, 28, 28)
    roi = torch.cat([torch.zeros(1, 1), regions[0][:1]], 1)
    wanted = roi_align(seen.masks[0][1:2, None].float(), roi, (28, 28), 1.0)[0, 0]
    assert float(found) == pytest.approx(float(F.binary_cross_entropy_with_logits(logits[0, 3], wanted)), rel=1e-5)


def test_mean_masks__average_the_own_classs_shares_of_the_heads():
    stages = [torch.randn(3, 4, 2, 2) for _ in range(3)]
    labels = [torch.tensor([1, 3]), torch.tensor([2])]
    first, second = mean_masks(stages, labels)
    assert (first.shape, second.shape) == ((2, 1, 2, 2), (1, 1, 2, 2))
    for row, label, own in ((0, 1, first[0, 0]), (1, 3, first[1, 0]), (2, 2, second[0, 0])):
        expected = sum(stage[row, label].sigmoid() for stage in stages) / 3
        torch.testing.assert_close(own, expected)


def test_cascade__answers_the_mean_of_its_three_heads_at_the_last_boxes():
    detector, seen = made(cascade=True).eval(), masked_batch()
    heads = detector.heads
    assert isinstance(heads, CascadeHeads)
    kept: list[torch.Tensor] = []
    pooled: list[torch.Tensor] = []
    for stage in heads.stages:
        assert isinstance(stage, RoIHeads)
        stage.mask_predictor.register_forward_hook(lambda module, given, answer: kept.append(answer))  # type: ignore[union-attr]
        stage.mask_roi_pool.register_forward_hook(lambda module, given, answer: pooled.append(given[1][0]))  # type: ignore[union-attr]
    with torch.no_grad():
        answer = detector(seen.images[:1], seen.image_sizes()[:1])[0]
    assert len(kept) == 3
    assert all(torch.equal(boxes, answer["boxes"]) for boxes in pooled)
    for place, label in enumerate(answer["labels"].tolist()):
        expected = torch.stack([logits[place, label + 1].sigmoid() for logits in kept]).mean(0)
        torch.testing.assert_close(answer["masks"][place, 0], expected)


@both
def test_answers__of_an_image_without_objects_have_no_masks(cascade: bool):
    detector = made(cascade).eval()
    for stage in detector.heads.stages if cascade else [detector.heads]:  # type: ignore[union-attr]
        stage.score_thresh = 2.0
    with torch.no_grad():
        answer = detector(torch.zeros(1, 3, 96, 100), [(96, 100)])[0]
    assert answer["masks"].shape == (0, 1, 28, 28)
    found = rescale(answer, (96, 100), (192, 200))
    assert (len(found), found.masks) == (0, ())


def test_pasted_masks__fill_their_boxes_in_the_pixels_of_the_image():
    boxes = torch.tensor([[10.0, 20.0, 38.0, 48.0], [-5.0, 60.0, 30.0, 90.0]])
    half = torch.zeros(28, 28)
    half[:, :14] = 1
    whole, left = paste_masks(torch.stack([torch.ones(28, 28), half])[:, None], boxes, (80, 100))
    expected = np.zeros((80, 100), dtype=bool)
    expected[20:48, 10:38] = True
    differing = np.argwhere(unpack_mask(whole).astype(bool) != expected)
    # torchvision pads the cells by one on each side, and rounds the box that this makes larger to whole pixels.
    assert all(min(abs(row - 20), abs(row - 48), abs(column - 10), abs(column - 38)) <= 1 for row, column in differing)
    mask = unpack_mask(left).astype(bool)
    assert mask[62:, :11].all()
    assert not mask[:58].any()
    assert not mask[:, 15:].any()


@pytest.mark.slow
@both
def test_a_few_steps__find_the_pixels_of_an_object(cascade: bool):
    objective = DetectionObjective(made(cascade), FineTuning()).train()
    seen = masked_batch()
    assert seen.masks is not None
    rows, columns = torch.arange(96)[:, None], torch.arange(100)
    seen.masks[0][0] = ((rows - 45) / 25) ** 2 + ((columns - 30) / 20) ** 2 < 1  # an ellipse in the first box
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    for step in range(80):
        torch.manual_seed(step)
        optimizer.zero_grad()
        objective(seen, START).total.backward()
        optimizer.step()
    with torch.no_grad():
        answer = objective.eval().detector(seen.images, seen.image_sizes())[0]
    found = rescale(answer, (96, 100), (96, 100))
    place = int(np.flatnonzero(found.labels == 0)[0])
    mask, wanted = found.mask(place), seen.masks[0][0].bool().numpy()
    box = filled(seen.boxes[0], (96, 100))[0].bool().numpy()
    overlap = (mask & wanted).sum() / (mask | wanted).sum()
    assert overlap > 0.7
    assert overlap > (mask & box).sum() / (mask | box).sum()
