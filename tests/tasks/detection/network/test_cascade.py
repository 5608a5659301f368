"""The heads of the cascade against plain loops and known values."""

import pytest
import torch
from torchvision.models.detection.roi_heads import RoIHeads

from paucal.tasks.detection.network.cascade import CascadeHeads
from tasks.detection.network.test_detector import batch, made


def test_box_losses__are_the_hits_share_of_smooth_l1():
    generator = torch.Generator().manual_seed(0)
    deltas, wanted = torch.randn(5, 4, generator=generator), torch.randn(5, 4, generator=generator)
    labels, regions = torch.tensor([0, 2, 0, 1, 0]), torch.zeros(5, 4)
    heads = made(cascade=True).heads
    assert isinstance(heads, CascadeHeads)
    box = heads.heads[0]._box_loss(deltas, labels, wanted, regions)
    expected = 0.0
    for row in (1, 3):
        for a, b in zip(deltas[row].tolist(), wanted[row].tolist(), strict=True):
            expected += 0.5 * (a - b) ** 2 if abs(a - b) < 1 else abs(a - b) - 0.5
    assert float(box) == pytest.approx(expected / 5, rel=1e-5)
    assert float(heads.heads[0]._box_loss(deltas, torch.zeros(5, dtype=torch.int64), wanted, regions)) == 0


def test_refine__moves_boxes_as_the_corrections_say_and_stops_the_gradient():
    heads = made(cascade=True).heads
    assert isinstance(heads, CascadeHeads)
    deltas = torch.tensor([[2.0, -1.0, 0.0, 0.0], [0.0, 0.0, 10.0, 100.0]], requires_grad=True)
    regions = [torch.tensor([[10.0, 10.0, 50.0, 30.0]]), torch.tensor([[20.0, 20.0, 40.0, 40.0]])]
    first, second = heads.heads[1].refine(deltas, torch.tensor([1, 2]), regions, [(100, 100), (60, 70)])
    # Moved by 2/20 of 40 pixels to the right and 1/20 of 20 pixels up; e times as wide and as high as fits.
    torch.testing.assert_close(first, torch.tensor([[14.0, 9.0, 54.0, 29.0]]))
    width = 20 * torch.e
    torch.testing.assert_close(second, torch.tensor([[30 - width / 2, 0.0, 30 + width / 2, 60.0]]))
    assert not first.requires_grad


def test_heads__get_what_the_one_before_has_made_and_objects_only_once():
    detector, seen = made(cascade=True).train(), batch()
    heads = detector.heads
    assert isinstance(heads, CascadeHeads)
    given: list[list[torch.Tensor]] = []
    for stage in heads.stages:
        assert isinstance(stage, RoIHeads)
        sample = stage.select_training_samples

        def keep(proposals, targets, sample=sample):
            given.append([one.clone() for one in proposals])
            return sample(proposals, targets)

        stage.select_training_samples = keep  # type: ignore[method-assign]
    torch.manual_seed(0)
    detector.losses(seen.images, seen.image_sizes(), seen.boxes, seen.labels)
    assert len(given) == 3
    for later in given[1:]:
        assert not any(torch.equal(box, own) for box in later[0] for own in seen.boxes[0])
    assert not torch.equal(given[1][0], given[2][0][: len(given[1][0])])


def test_probabilities__are_the_mean_of_the_three_heads():
    detector, seen = made(cascade=True).eval(), batch()
    heads = detector.heads
    assert isinstance(heads, CascadeHeads)
    shares: list[torch.Tensor] = []
    for stage in heads.stages:
        assert isinstance(stage, RoIHeads)
        stage.box_predictor.register_forward_hook(lambda module, given, made: shares.append(made[0].softmax(-1)))
    with torch.no_grad():
        found = detector(seen.images[:1], seen.image_sizes()[:1])[0]
    mean = torch.stack(shares).mean(0)[:, 1:]
    for score, label in zip(found["scores"][:5], found["labels"][:5], strict=True):
        assert bool(torch.isclose(mean[:, label], score, atol=1e-5).any())
