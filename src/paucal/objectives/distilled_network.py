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
    """The features of V crops of each of B images.

    Attributes:
        pooled: (B, V, P) pooled features of the crops.
        cells: One (B, T_v, P) tensor per crop, with the features at the T_v positions (cells) of the crop's feature
            map.
    """

    pooled: Tensor
    cells: list[Tensor]


class StudentOrTeacher(nn.Module):
    """A student or a teacher: a backbone, a head for crops and, if the region task is used, another head for cells.

    Args:
        backbone: Backbone that returns a feature map.
        options: Options of the method.
        trained: Whether the optimizer trains the network; true for the student, false for the teacher.
    """

    def __init__(self, backbone: FeatureBackbone, options: SelfDistillationOptions, trained: bool) -> None:
        super().__init__()
        self.backbone = backbone
        task_weights = options.weights()
        self.heads = nn.ModuleDict({name: _build_head(backbone.dim, options, trained) for name in task_weights})

    def extract(self, crops: Sequence[Tensor]) -> CropFeatures:
        """Return the features of V crops, each (B, C, H, W); all crops of one size share a single forward pass."""
        pooled: list[Tensor] = [crops[0]] * len(crops)
        cells: list[Tensor] = [crops[0]] * len(crops)
        for numbers in group_by_size(crops):
            features = self.backbone(torch.cat([crops[number] for number in numbers]))
            grids = features.grids[0].flatten(2).transpose(1, 2)
            chunks = (tensor.chunk(len(numbers)) for tensor in (features.pooled, grids))
            for number, crop_pooled, crop_cells in zip(numbers, *chunks, strict=True):
                pooled[number], cells[number] = crop_pooled, crop_cells
        return CropFeatures(torch.stack(pooled, 1), cells)

    def project(self, task: str, features: Tensor) -> Tensor:
        """Return the (..., D) projections of (..., P) features, which the task's head compares with prototypes."""
        return self.head(task).project(features)

    def prototypes(self, task: str) -> Tensor:
        """Return the (K, D) prototypes of a task's head."""
        return self.head(task).last_layer.scaled_prototypes()

    def head(self, task: str) -> ProjectionHead:
        """Return the head of the task "view" or "region"."""
        head = self.heads[task]
        assert isinstance(head, ProjectionHead)
        return head


def group_by_size(crops: Iterable[Tensor]) -> list[list[int]]:
    """Return one list of crop indices for each crop size, in the order in which the sizes first appear."""
    groups: dict[torch.Size, list[int]] = {}
    for number, crop in enumerate(crops):
        groups.setdefault(crop.shape[2:], []).append(number)
    return list(groups.values())


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, momentum: float, buffers: bool) -> None:
    """Set a teacher's weights (and buffers, if `buffers` is true) to momentum * teacher + (1 - momentum) * student."""
    for teacher_value, student_value in zip(teacher.parameters(), student.parameters(), strict=True):
        teacher_value.lerp_(student_value, 1 - momentum)
    for teacher_value, student_value in zip(teacher.buffers(), student.buffers(), strict=True) if buffers else ():
        if teacher_value.is_floating_point():
            teacher_value.lerp_(student_value, 1 - momentum)
        else:
            teacher_value.copy_(student_value)


def _build_head(dim: int, options: SelfDistillationOptions, trained: bool) -> ProjectionHead:
    return ProjectionHead(
        dim,
        options.out_dim,
        options.hidden_dim,
        options.bottleneck_dim,
        options.head_layers,
        options.head_batch_norm,
        # The teacher's prototype lengths need no gradient, since `update_teacher` sets them from the student's lengths.
        options.norm_last_layer or not trained,
    )
