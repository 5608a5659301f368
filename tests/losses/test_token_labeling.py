"""Token labeling: equal to the published program's numbers, and sparse equal to dense."""

import json
from pathlib import Path

import pytest
import torch
from torchvision.ops import roi_align

from paucal.data.maps.reader import list_map_classes
from paucal.losses.label_targets import (
    SparseTargets,
    compact_maps,
    map_targets,
    sample_maps,
    transpose_geometry,
)
from paucal.losses.token_labeling import (
    TokenLabelingReading,
    class_loss,
    dense_loss,
    kept_fraction,
    reverse_targets,
    soft_cross_entropy,
)
from vectors import fill

VECTORS = Path(__file__).parents[1] / "vectors"
LOSS = json.loads((VECTORS / "token_label_loss.json").read_text())
TARGETS = json.loads((VECTORS / "token_label_targets.json").read_text())
RULES = pytest.mark.parametrize("rule", ["mix", "sine"])
TOLERANCE = {"mix": 1e-5, "sine": 5e-5}


def tensor(key, shape, scale, rule):
    return torch.from_numpy(fill.tensor(key, shape, scale, rule))


def recorded_case(rule):
    class_logits = tensor("tl.class_logits", (4, 7), 2.0, rule).requires_grad_()
    token_logits = tensor("tl.token_logits", (4, 16, 7), 2.0, rule).requires_grad_()
    columns = tensor("tl.target", (4, 7, 18), 3.0, rule).softmax(1).transpose(1, 2)
    return class_logits, token_logits, columns


@RULES
@pytest.mark.parametrize("box", [(0, 0, 0, 0), (1, 0, 3, 2), (0, 1, 4, 4)])
@pytest.mark.parametrize(
    ("setting", "reading"),
    [
        ("default", TokenLabelingReading.from_preset("reference")),
        ("dense_weight_0.5", TokenLabelingReading.from_preset("paper")),
        ("class_weight_0_dense_1", TokenLabelingReading(0.0, 1.0)),
        ("ground_truth", TokenLabelingReading(1.0, 1.0, use_truth=True)),
    ],
)
def test_loss__equals_the_programs(rule, box, setting, reading):
    class_logits, token_logits, columns = recorded_case(rule)
    truth = columns[:, :1] if reading.use_truth else None
    loss = reading.class_weight * class_loss(class_logits, columns[:, 1:2], kept_fraction(box, (4, 4)), truth)
    loss = loss + reading.dense_weight * dense_loss(token_logits, columns[:, 2:])
    loss.backward()
    expected = LOSS["runs"][rule]["expected"][f"box{list(box)} {setting}"]
    assert loss.item() == pytest.approx(expected["loss"], rel=TOLERANCE[rule])
    assert class_logits.grad.norm().item() == pytest.approx(expected["gradient_l2_class"], rel=1e-4)
    assert token_logits.grad.norm().item() == pytest.approx(expected["gradient_l2_token"], rel=1e-4)


@RULES
def test_loss__without_maps_gives_every_token_the_images_label(rule):
    class_logits, token_logits, columns = recorded_case(rule)
    label = columns[:, 1:2]
    box = (1, 0, 3, 2)
    loss = class_loss(class_logits, label, kept_fraction(box, (4, 4))) + dense_loss(token_logits, label)
    expected = LOSS["runs"][rule]["expected"]
    assert loss.item() == pytest.approx(expected[f"box{list(box)} soft target without map"]["loss"], rel=1e-5)
    relabel = class_loss(class_logits, label).item()
    assert relabel == pytest.approx(expected["relabel_soft_target"]["loss"], rel=1e-5)


def recorded_map(rule):
    ranks = torch.arange(5.0)[:, None, None]
    values = 6 - ranks + tensor("tl.map_value", (5, 18, 18), 1.0, rule)
    indices = torch.from_numpy(fill.integers("tl.map_index", (18, 18), 6, rule)) + 6 * torch.arange(5)[:, None, None]
    return values, indices


def geometry_of(box):
    top, left, height, width = box
    return torch.tensor([[width, 0, 2 * left + width - 1], [0, height, 2 * top + height - 1]])


def recorded_targets(rule, size, original, count=3):
    values, indices = (one.expand(count, -1, -1, -1) for one in recorded_map(rule))
    classes, slots = list_map_classes(indices)
    maps = compact_maps(values, slots, classes.shape[1])
    geometry = torch.stack([geometry_of(box) for box in TARGETS["setting"]["boxes"][:count]])
    geometry = transpose_geometry(geometry) if original else geometry
    parts = [map_targets(maps, classes, geometry, sides, 30) for sides in ((1, 1), (size, size))]
    return parts


@RULES
@pytest.mark.parametrize("size", [4, 14])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("order", ["original", "corrected"])
def test_targets__equal_the_programs(rule, size, smoothing, order):
    parts = recorded_targets(rule, size, order == "original")
    dense = torch.cat([part.smoothed(smoothing, like_authors=True).dense() for part in parts], 1).transpose(1, 2)
    truth = torch.zeros(3, 30, 1)
    truth[range(3), TARGETS["setting"]["ground_truth"]] = 1
    on, off = 1 - smoothing + smoothing / 30, smoothing / 30
    target = torch.cat((truth * (on - off) + off, dense), -1)
    expected = TARGETS["runs"][rule]["expected"][f"{order} size {size} smoothing {smoothing}"]
    assert list(target.shape) == expected["shape"]
    flat = target.flatten()
    at = expected.get("indices") or range(len(expected["values"]))
    assert flat[list(at)].tolist() == pytest.approx(expected["values"], abs=1e-5)
    if "l2" in expected:
        assert flat.double().norm().item() == pytest.approx(expected["l2"], rel=1e-5)
    best = TARGETS["runs"][rule]["expected"].get(f"{order} size {size} smoothing {smoothing} argmax of token columns")
    if best is not None:
        assert parts[1].dense().argmax(-1).tolist() == best


@RULES
def test_class_target__equals_relabels(rule):
    parts = recorded_targets(rule, 1, True, 2)
    expected = TARGETS["runs"][rule]["expected"]["original size 1"]
    target = torch.zeros(2, 30, 2)
    target[range(2), TARGETS["setting"]["ground_truth"][:2], 0] = 1
    target[:, :, 1] = parts[1].dense()[:, 0]
    assert target.flatten()[expected["indices"]].tolist() == pytest.approx(expected["values"], abs=1e-5)
    assert target.norm().item() == pytest.approx(expected["l2"], rel=1e-5)


def averages(*given):
    return sample_maps(*given)[0]


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (14, 14)])
def test_sample_maps__of_boxes_is_roi_align(size):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(6, 4, 9, 18, generator=generator)
    corners = torch.rand(6, 2, generator=generator) * 0.5
    sides = 0.3 + torch.rand(6, 2, generator=generator) * (0.7 - corners)
    sides = torch.minimum(sides, 1 - corners)
    geometry = torch.stack([geometry_of((*c.tolist(), *s.tolist())) for c, s in zip(corners, sides, strict=True)])
    scale = torch.tensor([9.0, 18.0])
    begin, end = corners * scale, (corners + sides) * scale
    boxes = torch.stack((torch.arange(6.0), begin[:, 1], begin[:, 0], end[:, 1], end[:, 0]), 1)
    expected = roi_align(maps, boxes, size, aligned=True)
    torch.testing.assert_close(averages(maps, geometry, size), expected, atol=1e-5, rtol=1e-5)


def test_sample_maps__follows_mirrors_and_quarter_turns():
    maps = torch.arange(16.0).reshape(1, 1, 4, 4)
    mirror = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])
    assert torch.allclose(averages(maps, mirror, (4, 4)), maps.flip(-1), atol=1e-4)
    turned = torch.tensor([[[0.0, 1, 0], [-1, 0, 0]]])  # x of the map is y of the view
    assert torch.allclose(averages(maps, turned, (4, 4)), maps.flip(-2).transpose(-1, -2), atol=1e-4)


def test_sample_maps__counts_what_lies_outside_as_nothing():
    maps = torch.ones(1, 1, 4, 4)
    beyond = torch.tensor([[[1.0, 0, 1.0], [0, 1, 0]]])  # the right half shows nothing
    assert averages(maps, beyond, (1, 4))[0, 0, 0].tolist() == [1, 1, 0, 0]


WIDE = torch.tensor([[0.5, 1.0]])  # of an image twice as wide as high, the map covers the central square
WHOLE = torch.eye(2, 3)[None]


def test_sample_maps__leaves_out_what_the_map_does_not_cover():
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert averages(maps, WHOLE, (2, 4), WIDE)[0, 0].tolist() == [[0, 1, 2, 0], [0, 3, 4, 0]]
    assert averages(maps, WHOLE, (1, 1), WIDE).item() == pytest.approx(2.5)
    assert averages(maps, WHOLE, (1, 2), WIDE)[0, 0].tolist() == [[2, 3]]  # halves, each half known
    square = torch.tensor([[[0.5, 0, 0], [0, 1, 0]]])
    torch.testing.assert_close(averages(maps, square, (2, 2), WIDE), maps)
    mirrored_right = torch.tensor([[[-0.5, 0, 0.5], [0, 1, 0]]])  # the right half of the image, mirrored
    assert averages(maps, mirrored_right, (2, 2), WIDE)[0, 0].tolist() == [[0, 2], [0, 4]]


def test_known__tells_what_lies_beside_the_map_from_what_lies_beside_the_image():
    maps, classes = torch.full((1, 1, 2, 2), 9.0), torch.zeros(1, 1, dtype=torch.long)
    assert map_targets(maps, classes, WHOLE, (1, 4), 3, WIDE).coverage.tolist() == [[0, 1, 1, 0]]
    beyond = torch.tensor([[[1.0, 0, 1.0], [0, 1, 0]]])  # the image's right half, then nothing
    targets = map_targets(maps, classes, beyond, (1, 4), 3, WIDE)
    assert targets.coverage.tolist() == [[1, 0, 1, 1]]
    assert targets.dense()[0, 3].tolist() == pytest.approx([1 / 3] * 3)
    assert map_targets(maps, classes, WHOLE, (1, 4), 3).coverage is None


def test_losses__count_only_what_is_known():
    generator = torch.Generator().manual_seed(0)
    maps, classes = torch.randn(2, 2, 2, 2, generator=generator) * 3, torch.tensor([[0, 2], [1, 3]])
    covered = WIDE.expand(2, 2)
    targets = map_targets(maps, classes, WHOLE.expand(2, 2, 3), (1, 4), 5, covered).smoothed(0.1)
    logits = torch.randn(2, 4, 5, generator=generator)
    expected = soft_cross_entropy(logits, targets)[:, 1:3].mean()
    torch.testing.assert_close(dense_loss(logits, targets), expected)
    edge = torch.tensor([[[0.25, 0, 0.75], [0, 1, 0]], [[1.0, 0, 0], [0, 1, 0]]])  # the first shows nothing known
    whole = map_targets(maps, classes, edge, (1, 1), 5, covered)
    alone = soft_cross_entropy(logits[:, :1], whole)[:, 0]
    torch.testing.assert_close(class_loss(logits[:, 0], whole), alone[1] / 2)
    assert (reverse_targets(whole).coverage > 0).tolist() == [[True], [False]]


def random_targets(classes=11):
    generator = torch.Generator().manual_seed(1)
    indices = torch.rand(3, classes, 4, 4, generator=generator).argsort(1)[:, :3]
    values = torch.randn(3, 3, 4, 4, generator=generator) * 3
    named, slots = list_map_classes(indices)
    maps = compact_maps(values, slots, named.shape[1])
    geometry = torch.stack([geometry_of((0.1, 0.2, 0.7, 0.5))] * 3)
    full = torch.zeros(3, classes, 4, 4).scatter_(1, indices, values)
    return map_targets(maps, named, geometry, (2, 3), classes), full, geometry


def test_targets__are_the_softmax_over_all_classes():
    targets, full, geometry = random_targets()
    expected = averages(full, geometry, (2, 3)).flatten(2).transpose(1, 2).softmax(-1)
    torch.testing.assert_close(targets.dense(), expected)
    torch.testing.assert_close(targets.smoothed(0.2).dense(), expected * 0.8 + 0.2 / 11)
    torch.testing.assert_close(targets.smoothed(0.2).dense().sum(-1), torch.ones(3, 6))


@pytest.mark.parametrize("own", [2, 4, 10])
def test_targets__share_the_probability_of_foreign_classes_evenly(own):
    """The teacher knows 11 classes; of three named at each cell some, none or all are learned."""
    generator = torch.Generator().manual_seed(1)
    indices = torch.rand(3, 11, 4, 4, generator=generator).argsort(1)[:, :3]
    values = torch.randn(3, 3, 4, 4, generator=generator) * 3
    geometry, known = torch.stack([geometry_of((0.1, 0.2, 0.7, 0.5))] * 3), torch.full((3,), 11)
    full = torch.zeros(3, 11, 4, 4).scatter_(1, indices, values)
    everything = averages(full, geometry, (2, 3)).flatten(2).transpose(1, 2).softmax(-1)
    expected = everything[..., :own] + everything[..., own:].sum(-1, keepdim=True) / own
    named, slots = list_map_classes(indices)
    maps = compact_maps(values, slots, named.shape[1])
    targets = map_targets(maps, named, geometry, (2, 3), own, teacher_classes=known)
    torch.testing.assert_close(targets.dense(), expected)
    torch.testing.assert_close(targets.smoothed(0.2).dense(), expected * 0.8 + 0.2 / own)
    logits = torch.randn(3, 6, own, generator=generator)
    dense = -(expected * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(soft_cross_entropy(logits, targets), dense)


@pytest.mark.parametrize("change", ["none", "smoothed", "program", "flipped"])
def test_sparse__loss_and_gradient_equal_the_dense_ones(change):
    targets, _, _ = random_targets()
    changes = {"smoothed": lambda t: t.smoothed(0.1), "program": lambda t: t.smoothed(0.1, like_authors=True)}
    targets = {**changes, "none": lambda t: t, "flipped": reverse_targets}[change](targets)
    logits = torch.randn(3, 6, 11, requires_grad=True)
    sparse = soft_cross_entropy(logits, targets)
    dense = -(targets.dense() * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(sparse, dense)
    (a,) = torch.autograd.grad(sparse.sum(), logits)
    (b,) = torch.autograd.grad(dense.sum(), logits)
    torch.testing.assert_close(a, b)


def test_padding__changes_nothing():
    targets, _, _ = random_targets()
    padded = SparseTargets(
        torch.nn.functional.pad(targets.classes, (0, 4), value=-1),
        torch.nn.functional.pad(targets.named, (0, 4)),
        targets.unnamed_probability,
        11,
    )
    logits = torch.randn(3, 6, 11)
    torch.testing.assert_close(soft_cross_entropy(logits, padded), soft_cross_entropy(logits, targets))
    torch.testing.assert_close(padded.smoothed(0.1).dense(), targets.smoothed(0.1).dense())


def test_kept_share__is_one_without_a_box():
    assert kept_fraction(None, (4, 4)) == 1
    assert kept_fraction((1, 0, 3, 2), (4, 4)) == 0.75
