"""What detectors and segmenters promise, over backbones of stages, of a single grid and of convolutions."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from paucal.backbones import BackboneSpec
from paucal.objectives.base import Objective
from paucal.objectives.finetuning import FineTuning
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.network.detector import Detector, build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.objective import DetectionObjective
from paucal.tasks.segmentation.crops import MASK
from paucal.tasks.segmentation.network import build_segmentation_network
from paucal.tasks.segmentation.objective import PixelObjective
from paucal.types import Batch, Progress

SIDE, IMAGES, CLASSES = 64, 4, 3
START = Progress(0, 10, 10)
SPECS = {
    "stages": BackboneSpec(
        "swin_tiny_patch4_window7_224",
        0,
        image_size=(SIDE, SIDE),
        arguments={"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4},
    ),
    "single grid": BackboneSpec(
        "dhvt_tiny_imagenet_patch16",
        0,
        image_size=(SIDE, SIDE),
        arguments={"embed_dim": 32, "depth": 1, "num_heads": 2},
    ),
    "convolutional": BackboneSpec("test_resnet", 0, image_size=(SIDE, SIDE)),
}
CLASS_TOKEN_ONLY = (".mlp.compress.", ".mlp.excitation.")  # of DHVT's last block: no map sees what they change
TASKS = ("segmentation", "detection", "cascade")
every = pytest.mark.parametrize("kind", SPECS)
each = pytest.mark.parametrize("task", TASKS)


def made(task: str, kind: str, seed: int = 0) -> Objective:
    torch.manual_seed(seed)
    if task == "segmentation":
        return PixelObjective(build_segmentation_network(SPECS[kind], CLASSES, width=8), auxiliary_width=8)
    options = DetectorOptions(16, 16, 8, 4, 32, 64, task == "cascade", least_score=0.0, most=8)
    return DetectionObjective(build_detector(SPECS[kind], CLASSES, options), FineTuning())


@torch.no_grad()
def awake(objective: Objective) -> Objective:
    """Give what begins at 0 a value: a branch that is multiplied by 0 lets no gradient through at its first step."""
    for parameter in objective.parameters():
        if parameter.requires_grad and not bool(parameter.any()):
            parameter.fill_(0.1)
    return objective


def pixels() -> Tensor:
    return torch.randn(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def batch(task: str) -> Batch | BoxBatch:
    if task == "segmentation":
        mask = torch.randint(0, CLASSES, (IMAGES, SIDE, SIDE), generator=torch.Generator().manual_seed(2))
        return Batch(torch.arange(IMAGES), [pixels()], label_maps={MASK: mask.to(torch.uint8)})
    sizes = torch.tensor([[SIDE, SIDE]] * IMAGES)
    boxes = [torch.tensor([[4.0 + n, 6.0, 30.0, 40.0], [30.0, 20.0, 60.0, 50.0 + n]]) for n in range(IMAGES)]
    return BoxBatch(torch.arange(IMAGES), pixels(), sizes, boxes, [torch.tensor([0, 2])] * IMAGES, sizes)


@torch.no_grad()
def answers(network: nn.Module, images: Tensor) -> Sequence[Tensor]:
    """Return what a network says, as tensors with one entry per image."""
    if not isinstance(network, Detector):
        return [network(images)]
    found = network(images, [(SIDE, SIDE)] * len(images))
    return [torch.stack([one[name] for one in found]) for name in ("boxes", "scores", "labels")]


@each
@every
def test_losses__are_finite_and_reach_all_that_learns(task: str, kind: str):
    objective = awake(made(task, kind)).train()
    torch.manual_seed(1)
    terms = objective(batch(task), START)  # type: ignore[arg-type]
    assert all(bool(torch.isfinite(value)) and float(value.detach()) > 0 for value in terms.values.values())
    terms.total.backward()
    learning = {name: p.grad for name, p in objective.named_parameters() if p.requires_grad}
    assert [name for name, gradient in learning.items() if gradient is None] == []
    assert all(bool(torch.isfinite(gradient).all()) for gradient in learning.values() if gradient is not None)
    # The bias of a convolution before a batch norm has none by nature; every matrix and kernel has one.
    silent = [n for n, g in learning.items() if g is not None and g.dim() > 1 and not bool(g.any())]
    assert [name for name in silent if not any(part in name for part in CLASS_TOKEN_ONLY)] == []


@each
@every
def test_answers__have_the_promised_shapes(task: str, kind: str):
    found = answers(made(task, kind).eval().deployable(), pixels())
    if task == "segmentation":
        assert [tuple(one.shape) for one in found] == [(IMAGES, CLASSES, SIDE, SIDE)]
    else:
        assert [tuple(one.shape) for one in found] == [(IMAGES, 8, 4), (IMAGES, 8), (IMAGES, 8)]
        assert bool((found[0] >= 0).all())
        assert bool((found[0] <= SIDE).all())
        assert set(found[2].unique().tolist()) <= set(range(CLASSES))


@each
@every
def test_answers__are_the_same_again_and_draw_nothing(task: str, kind: str):
    network = made(task, kind).eval().deployable()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = answers(network, pixels())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(torch.equal(one, two) for one, two in zip(first, answers(network, pixels()), strict=True))


@each
@every
def test_state__brings_the_answers_and_the_losses_back(task: str, kind: str):
    objective, other = made(task, kind, seed=0), made(task, kind, seed=1)
    images = pixels()
    first, strange = (answers(one.eval().deployable(), images)[0] for one in (objective, other))
    assert not torch.equal(first, strange)
    other.load_state_dict(objective.state_dict())
    assert torch.equal(answers(other.eval().deployable(), images)[0], first)
    losses = []
    for one in (objective, other):
        torch.manual_seed(3)
        losses.append(one.train()(batch(task), START).total)  # type: ignore[arg-type]
    assert torch.equal(*losses)


@each
@every
def test_half_of_the_images__get_the_answers_of_all(task: str, kind: str):
    network, images = made(task, kind).eval().deployable(), pixels()
    whole = answers(network, images)
    halves = zip(answers(network, images[: IMAGES // 2]), answers(network, images[IMAGES // 2 :]), strict=True)
    for one, parts in zip(whole, halves, strict=True):
        torch.testing.assert_close(torch.cat(parts), one, rtol=1e-4, atol=1e-4)
