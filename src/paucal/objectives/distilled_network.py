"""A backbone with the heads of self-distillation, and its forward pass over many crops."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.objectives.projection_head import ProjectionHead
from paucal.objectives.self_distillation_options import SelfDistillationOptions


@dataclass(frozen=True)
class CropFeatures:
    """The features of V crops of B images.

    Attributes:
        pooled: (B, V, P) features of whole crops.
        cells: Features of the cells of each crop, (B, T_v, P).
    """

    pooled: Tensor
    cells: list[Tensor]


class DistilledNetwork(nn.Module):
    """A student or a teacher: a backbone, a head for views and, with the region task, one for cells."""

    def __init__(self, backbone: FeatureBackbone, options: SelfDistillationOptions, trained: bool) -> None:
        super().__init__()
        self.backbone = backbone
        names = options.weights()
        self.heads = nn.ModuleDict({name: _build_head(backbone.dim, options, trained) for name in names})

    def see(self, crops: Sequence[Tensor]) -> CropFeatures:
        """Run the backbone once per resolution."""
        pooled: list[Tensor] = [crops[0]] * len(crops)
        cells: list[Tensor] = [crops[0]] * len(crops)
        for members in same_size(crops):
            features = self.backbone(torch.cat([crops[number] for number in members]))
            grids = features.grids[0].flatten(2).transpose(1, 2)
            parts = (tensor.chunk(len(members)) for tensor in (features.pooled, grids))
            for number, pooled_view, grid in zip(members, *parts, strict=True):
                pooled[number], cells[number] = pooled_view, grid
        return CropFeatures(torch.stack(pooled, 1), cells)

    def project(self, task: str, features: Tensor) -> Tensor:
        """Return a task's projections (..., D) of features (..., P), which are compared with prototypes."""
        return self.head(task).project(features)

    def prototypes(self, task: str) -> Tensor:
        """Return the (K, D) prototypes of a task."""
        return self.head(task).last_layer.directions()

    def head(self, task: str) -> ProjectionHead:
        """Return the head of "view" or "region"."""
        head = self.heads[task]
        assert isinstance(head, ProjectionHead)
        return head


def same_size(crops: Iterable[Tensor]) -> list[list[int]]:
    """Return the indices of the crops grouped by size, in the order of first appearance."""
    groups: dict[torch.Size, list[int]] = {}
    for number, crop in enumerate(crops):
        groups.setdefault(crop.shape[2:], []).append(number)
    return list(groups.values())


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float, buffers: bool) -> None:
    """Move a teacher's weights, and with `buffers` its running statistics, towards the student's by an average."""
    for own_value, student_value in zip(teacher.parameters(), student.parameters(), strict=True):
        own_value.lerp_(student_value, 1 - momentum)
    for own_value, student_value in zip(teacher.buffers(), student.buffers(), strict=True) if buffers else ():
        if own_value.is_floating_point():
            own_value.lerp_(student_value, 1 - momentum)
        else:
            own_value.copy_(student_value)


def _build_head(dim: int, options: SelfDistillationOptions, trained: bool) -> ProjectionHead:
    return ProjectionHead(
        dim,
        options.out_dim,
        options.hidden_dim,
        options.bottleneck_dim,
        options.head_layers,
        options.head_batch_norm,
        # The lengths of the teacher's prototypes are fixed for the optimizer, but follow the student's.
        options.norm_last_layer or not trained,
    )
