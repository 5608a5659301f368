"""Losses and gradients of one of two processes that train together; started by the test with rank, store and a file."""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paucal.backbones import BackboneSpec
from paucal.objectives.base import Objective
from paucal.objectives.finetuning import FineTuning
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.objective import DetectionObjective
from paucal.tasks.segmentation.crops import MASK
from paucal.tasks.segmentation.network import build_segmentation_network
from paucal.tasks.segmentation.objective import PixelObjective
from paucal.types import Batch, Progress

TASKS = ("segmentation", "detection", "cascade")
SIDE, IMAGES, CLASSES, REGIONS = 64, 4, 3, 12
SPEC = BackboneSpec(
    "swin_tiny_patch4_window7_224",
    0,
    image_size=(SIDE, SIDE),
    arguments={"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4},
)


class FixedProposals(nn.Module):
    """Takes the place of the network that proposes regions, which draws those it learns from."""

    def __init__(self, regions: dict[float, Tensor]) -> None:
        super().__init__()
        self._regions = regions

    def forward(
        self, images: object, features: OrderedDict[str, Tensor], targets: Sequence[dict[str, Tensor]]
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        return [self._regions[float(one["boxes"][0, 0])].clone() for one in targets], {}


def made(task: str) -> Objective:
    torch.manual_seed(0)
    if task == "segmentation":
        network = build_segmentation_network(SPEC, CLASSES, width=8, dropout=0.0, drop_path_rate=0.0)
        return PixelObjective(network, auxiliary_width=8, dropout=0.0)
    # As many regions learn as there are, so that none is drawn.
    options = DetectorOptions(16, 16, 8, 4, 8 * REGIONS, 64, task == "cascade")
    detector = build_detector(SPEC, CLASSES, options, drop_path_rate=0.0)
    detector.proposals = FixedProposals({float(n): regions(n) for n in range(IMAGES)})  # type: ignore[assignment]
    return DetectionObjective(detector, FineTuning())


def regions(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    corners = 40 * torch.rand(REGIONS, 2, generator=generator)
    near = boxes(number) + torch.tensor([1.0, 1.0, 2.0, 2.0])  # hits for all heads of a cascade
    return torch.cat([near, torch.cat([corners, corners + 8 + 12 * torch.rand(REGIONS, 2, generator=generator)], 1)])


def boxes(number: int) -> Tensor:
    return torch.tensor([[float(number), 6.0, 30.0, 40.0], [30.0, 20.0, 60.0, 50.0 + number]])


def batch(task: str, chosen: Sequence[int]) -> Batch | BoxBatch:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(IMAGES, 3, SIDE, SIDE, generator=generator)[list(chosen)]
    if task == "segmentation":
        mask = torch.randint(0, CLASSES, (IMAGES, SIDE, SIDE), generator=generator).to(torch.uint8)
        mask[:, :9] = 255  # as many in every image
        return Batch(torch.tensor(chosen), [pixels], label_maps={MASK: mask[list(chosen)]})
    sizes = torch.tensor([[SIDE, SIDE]] * len(chosen))
    labels = [torch.tensor([0, 2])] * len(chosen)
    return BoxBatch(torch.tensor(chosen), pixels, sizes, [boxes(n) for n in chosen], labels, sizes)


def gradients(task: str, chosen: Sequence[int]) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return losses and gradients on some images; the mean over the processes where there are several."""
    objective = made(task).train()
    for module in objective.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()  # statistics are each process's own, which is no matter of losses and gradients
    together = dist.is_initialized()
    run = DistributedDataParallel(objective) if together else objective
    terms = run(batch(task, chosen), Progress(0, 10, 10))
    terms.total.backward()
    values = {}
    for name, value in terms.values.items():
        loss = value.detach().clone()
        if together:
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        values[name] = float(loss)
    return values, {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    number, store, target = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    half = IMAGES // 2
    found = {task: gradients(task, range(number * half, (number + 1) * half)) for task in TASKS}
    if number == 0:
        torch.save(found, target)
    dist.destroy_process_group()
