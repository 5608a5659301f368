"""The options and networks of self-distillation (EsViT, DINO): a backbone with projection heads, for many crops."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.losses import Similarity, task_weights
from paucal.types import Progress

Tasks = Literal["view", "view+region"]
INIT_STD = 0.02  # standard deviation of the initial weights of a head's MLP


@dataclass(frozen=True)
class SelfDistillationOptions:
    """Options of EsViT (Li et al., ICLR 2022), with the values of the published Swin-T run.

    Attributes:
        tasks: "view" to compare crops; "view+region" to compare crops, and cells (positions) of their feature maps.
        view_weight: Weight of the view loss; None for 0.5 if the region loss is used, else 1, as in the published code.
        region_weight: Weight of the region loss. (The text of the paper adds the two losses without weights; Algorithm
            1 and the authors' code use 0.5.)
        similarity: Measure by which the teacher's most similar cell is selected: "cosine" or "dot" (dot product).
        out_dim: Number of prototypes K of a head.
        hidden_dim: Width of the hidden layers of a head's MLP.
        bottleneck_dim: Number of channels of the vectors that are compared with prototypes.
        head_layers: Number of linear layers of a head's MLP.
        head_batch_norm: Whether the MLP has batch norms.
        norm_last_layer: Whether all prototypes have length 1, as by default in the authors' code. The published runs,
            except Swin-B with window size 14, learn the lengths, which is less stable.
        freeze_last_layer: Number of epochs at the beginning in which prototypes are frozen.
        student_temperature: Temperature of the student.
        teacher_temperature: Temperature of the teacher after the warm-up.
        warmup_teacher_temperature: Temperature of the teacher in the first epoch.
        warmup_teacher_epochs: Number of epochs in which the teacher's temperature changes linearly; the last of these
            epochs has `teacher_temperature`.
        momentum: Initial momentum of the teacher's moving average, which rises to 1 on a half cosine.
        centre_momentum: Momentum of the centre's moving average.
        weight_decay: Initial weight decay.
        weight_decay_end: Final weight decay, which is reached on a half cosine.
        decays_tables: Whether weight decay also applies to relative-position tables, tokens and position embeddings, as
            in the authors' code, where only biases and one-dimensional parameters are exempt.
        clip: L2 norm to which the gradient of each parameter is clipped separately; 0 for no clipping.
        teacher_norm: Statistics that the teacher's batch norms use: "batch" for the statistics of the batch, as
            published, or "running" for a moving average of the student's running statistics.
        mixup: Alpha of mixup between the student's crops of consecutive images; 0 for no mixup. Mixup is not supported
            for the region task, since a mixed cell has no single match. (The authors' code also mixes cells, but not
            the targets of cells.)

    Raises:
        ValueError: A value is out of range.
    """

    tasks: Tasks = "view+region"
    view_weight: float | None = None
    region_weight: float = 0.5
    similarity: Similarity = "cosine"
    out_dim: int = 65536
    hidden_dim: int = 2048
    bottleneck_dim: int = 256
    head_layers: int = 3
    head_batch_norm: bool = False
    norm_last_layer: bool = True
    freeze_last_layer: int = 1
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07
    warmup_teacher_temperature: float = 0.04
    warmup_teacher_epochs: int = 30
    momentum: float = 0.996
    centre_momentum: float = 0.9
    weight_decay: float = 0.04
    weight_decay_end: float = 0.4
    decays_tables: bool = False
    clip: float = 3.0
    teacher_norm: Literal["batch", "running"] = "batch"
    mixup: float = 0.0

    def __post_init__(self) -> None:
        for name in ("student_temperature", "teacher_temperature", "warmup_teacher_temperature"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("momentum", "centre_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.out_dim < 2:
            raise ValueError(f"out_dim must be at least 2, got {self.out_dim}")
        if self.mixup and self.tasks != "view":
            raise ValueError(f"mixup is only supported if tasks is 'view', got {self.tasks!r}")

    def weights(self) -> dict[str, float]:
        """Return the weight of each task that is used, by the name of the task."""
        return task_weights(self.tasks != "view", self.view_weight, self.region_weight)

    def temperature(self, epoch: int) -> float:
        """Return the teacher's temperature in an epoch, counted from 0.

        Example:
            >>> [round(SelfDistillationOptions().temperature(epoch), 4) for epoch in (0, 1, 15, 29, 30, 299)]
            [0.04, 0.041, 0.0555, 0.07, 0.07, 0.07]
        """
        start, end, epochs = self.warmup_teacher_temperature, self.teacher_temperature, self.warmup_teacher_epochs
        if epoch >= epochs:
            return end
        return start + (end - start) * epoch / max(epochs - 1, 1)

    def teacher_momentum(self, progress: Progress) -> float:
        """Return the momentum of the teacher's update after the step at `progress`."""
        return progress.half_cosine(self.momentum, 1.0)

    def decay(self, progress: Progress) -> float:
        """Return the weight decay of the step at `progress`."""
        return progress.half_cosine(self.weight_decay, self.weight_decay_end)

    @property
    def highest_decay(self) -> float:
        """The maximum of the initial and the final weight decay."""
        return max(self.weight_decay, self.weight_decay_end)


class ProjectionHead(nn.Module):
    """An MLP that projects features to vectors of length 1, and a layer that scores each vector for each prototype.

    In training, only `project` is used, and `losses.prototype_cross_entropy` computes the scores, for a few images at a
    time. `forward` returns the scores of all rows at once and is meant for few rows. Parameters have the same names as
    in the published checkpoints. Source: EsViT (Li et al., ICLR 2022, section 3), as in DINO.

    `dim` is the number of channels P of the features, `out_dim` the number of prototypes K, and `bottleneck_dim` the
    number of channels D of the projected vectors. Without `norm_last_layer`, the lengths of the prototypes are learned.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        layers: int = 3,
        batch_norm: bool = False,
        norm_last_layer: bool = True,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"a projection head needs at least 1 layer, got {layers}")
        widths = [dim, *[hidden_dim] * (layers - 1), bottleneck_dim]
        modules: list[nn.Module] = []
        for number in range(layers):
            modules.append(nn.Linear(widths[number], widths[number + 1]))
            if number < layers - 1:
                modules += [nn.BatchNorm1d(hidden_dim), nn.GELU()] if batch_norm else [nn.GELU()]
        self.mlp = nn.Sequential(*modules) if layers > 1 else modules[0]
        for module in self.mlp.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)
        self.last_layer = Prototypes(bottleneck_dim, out_dim, norm_last_layer)

    def project(self, features: Tensor) -> Tensor:
        """Return (..., D) float32 vectors of length 1 for (..., P) features."""
        flat = self.mlp(features.flatten(0, -2)).float()
        return F.normalize(flat, dim=-1).unflatten(0, features.shape[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Return the (..., K) scores of (..., P) features.

        The scores are computed in float32 even under autocast, because in half precision the highest scores of a row
        could become equal.
        """
        rows = self.project(features)
        with torch.autocast(rows.device.type, enabled=False):
            return rows @ self.last_layer.scaled_prototypes().float().T


class Prototypes(nn.Module):
    """A weight-normalised linear layer without bias: directions `weight_v` (K, D), and lengths `weight_g` (K, 1)."""

    def __init__(self, dim: int, out_dim: int, fixed: bool) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(out_dim, 1), requires_grad=not fixed)
        self.weight_v = nn.Parameter(nn.Linear(dim, out_dim, bias=False).weight.detach())

    def scaled_prototypes(self) -> Tensor:
        """Return the (K, D) prototypes, which are the rows of `weight_v` scaled to the lengths `weight_g`."""
        return self.weight_g * F.normalize(self.weight_v, dim=1)


@dataclass(frozen=True)
class CropFeatures:
    """The features of V crops of each of B images."""

    pooled: Tensor  # (B, V, P) pooled features of the crops
    cells: list[Tensor]  # one (B, T_v, P) tensor per crop, with the features at the T_v cells of its feature map


class StudentOrTeacher(nn.Module):
    """A student (`trained`) or a teacher: a backbone, a head for crops and, for the region task, one for cells."""

    def __init__(self, backbone: FeatureBackbone, options: SelfDistillationOptions, trained: bool) -> None:
        super().__init__()
        self.backbone, self.heads = backbone, nn.ModuleDict()
        for name in options.weights():
            self.heads[name] = ProjectionHead(
                backbone.dim,
                options.out_dim,
                options.hidden_dim,
                options.bottleneck_dim,
                options.head_layers,
                options.head_batch_norm,
                # The teacher's prototype lengths need no gradient: `update_teacher` sets them from the student's.
                options.norm_last_layer or not trained,
            )

    def extract(self, crops: Sequence[Tensor]) -> CropFeatures:
        """Return the features of V crops, each (B, C, H, W); all crops of one size share a single forward pass."""
        pooled, cells = list(crops), list(crops)  # placeholders for the features of each crop
        for numbers in group_by_size(crops):
            features = self.backbone(torch.cat([crops[number] for number in numbers]))
            grids = features.grids[0].flatten(2).transpose(1, 2)
            chunks = (tensor.chunk(len(numbers)) for tensor in (features.pooled, grids))
            for number, crop_pooled, crop_cells in zip(numbers, *chunks, strict=True):
                pooled[number], cells[number] = crop_pooled, crop_cells
        return CropFeatures(torch.stack(pooled, 1), cells)

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
