"""Options of EsViT's self-distillation; the defaults are the values of the published runs."""

from dataclasses import dataclass
from typing import Literal

from paucal.losses import Similarity, task_weights
from paucal.types import Progress

Tasks = Literal["view", "view+region"]


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
