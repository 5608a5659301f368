"""Self-distillation without labels: EsViT (Li et al., ICLR 2022), or DINO with only the view task.

A student sees all crops of an image; the teacher, its moving average, sees the global ones. The student learns to give
every crop, and every cell of it, the distribution over prototypes that the teacher gives to another crop and to the
most similar cell there. Centring and sharpening of the teacher prevent collapse.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.spec import BackboneSpec
from paucal.losses import (
    EsvitTask,
    Sharpness,
    Targets,
    all_reduce_mean,
    esvit_loss,
    moved_centre,
    region_targets,
    view_pairs,
    view_targets,
)
from paucal.objectives.base import Objective
from paucal.objectives.crop_mixing import mixed_crops, mixed_targets
from paucal.objectives.distillation_health import task_health, teacher_distance
from paucal.objectives.distilled_network import CropFeatures, DistilledNetwork, follow
from paucal.objectives.self_distillation_options import SelfDistillationOptions
from paucal.types import Batch, Crops, DataRequest, GroupScale, GroupScales, LossTerms, Progress

HEALTH_EVERY = 10  # steps between two measurements of the signs of collapse


class SelfDistillation(Objective):
    """View-level and region-level self-distillation of any backbone with a grid.

    Differences from the published code: any number of crop groups of any size; centres and the teacher are updated once
    per optimizer step, from all its images; in half precision cells are still matched in float32; running
    statistics of BatchNorm follow `options.teacher_norm`.

    Args:
        spec: Backbone without a classifier; its image size is that of the global crops.
        crops: Groups of views with their sizes, global views first.
        options: Options of the method.
        drop_path_rate: Stochastic depth rate of the student; the teacher has none.

    Raises:
        UserError: the backbone cannot take the crops.
        ValueError: there is no pair of crops to compare, or a crop has no size.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        crops: Sequence[Crops],
        options: SelfDistillationOptions | None = None,
        drop_path_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.options = options or SelfDistillationOptions()
        self.decays_tables = self.options.decays_tables
        self.global_views, self.all_views = crops[0].count, sum(group.count for group in crops)
        if not view_pairs(self.global_views, self.all_views):
            raise ValueError(f"{self.all_views} crops of an image make no pair; ask for at least 2")
        sizes = [crop_size(group) for group in crops]
        self.student = DistilledNetwork(spec.build(sizes, drop_path_rate), self.options, trained=True)
        self.teacher = DistilledNetwork(spec.build(sizes, drop_path_rate=0.0), self.options, trained=False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        for name in self.options.weights():
            self.register_buffer(f"centre_{name}", torch.zeros(self.options.out_dim))
        self._means: dict[str, list[Tensor]] = {}
        self._health: dict[str, Tensor] = {}
        self.data_request = DataRequest(tuple(crops), mixing=False, labels=False, smallest_batch=2)

    def train(self, mode: bool = True) -> "SelfDistillation":
        """Set the mode; a teacher with running statistics stays in evaluation mode."""
        super().train(mode)
        if self.options.teacher_norm == "running":
            self.teacher.eval()
        return self

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the losses "view" and, with the region task, "region"."""
        crops = batch.views
        with torch.no_grad():
            teacher_seen = self.teacher.see(crops[: self.global_views])
        shares = None
        if self.options.mixup and self.training:
            crops, shares = mixed_crops(crops, self.options.mixup)
        student_seen = self.student.see(crops)
        temperature = self.options.temperature(progress.epoch)
        loss_parts = esvit_loss(
            self._view_task(student_seen, teacher_seen, shares),
            self._region_task(student_seen, teacher_seen) if "region" in self.options.weights() else None,
            student_temperature=self.options.student_temperature,
            teacher_temperature=temperature,
        )
        values = {"view": loss_parts.view}
        if loss_parts.region is not None:
            values["region"] = loss_parts.region
        if self.training and progress.step % min(HEALTH_EVERY, progress.steps_per_epoch) == 0:
            self._record_health(student_seen, teacher_seen, temperature)
        return LossTerms(values, self.options.weights())

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the teacher's backbone, then the student's."""
        return [self.teacher.backbone, self.student.backbone]

    def deployable(self) -> nn.Module:
        """Return the teacher's timm model without the heads."""
        return self.teacher.backbone.model

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return the weight decay of this step, relative to the highest of the run."""
        highest = self.options.highest_decay
        return {"main": GroupScale(weight_decay=self.options.decay(progress) / highest if highest else 0.0)}

    def before_step(self, progress: Progress) -> None:
        """Clip each tensor's gradient separately, and freeze the prototypes in the first epochs."""
        if self.options.clip:
            clip_each(self.student.parameters(), self.options.clip)
        if progress.epoch < self.options.freeze_last_layer:
            for name in self.options.weights():
                for parameter in self.student.head(name).last_layer.parameters():
                    parameter.grad = None

    def after_step(self, progress: Progress) -> None:
        """Move the teacher towards the student, and the centres towards the teacher's mean scores."""
        # The momentum is that of the completed step, whose number is one less.
        finished_step = Progress(progress.step - 1, progress.total_steps, progress.steps_per_epoch)
        momentum = self.options.teacher_momentum(finished_step)
        follow(self.teacher, self.student, momentum, buffers=self.options.teacher_norm == "running")
        for name, means in self._means.items():
            centre = self._centre_of(name)
            centre.copy_(moved_centre(centre, torch.stack(means).mean(0), self.options.centre_momentum))
        self._means = {}

    def chance_levels(self) -> dict[str, float]:
        """Return ln K per task, the loss of a student that finds all prototypes equally likely."""
        return dict.fromkeys(self.options.weights(), math.log(self.options.out_dim))

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the latest health metrics of student and teacher; see `distillation_health`."""
        newest, self._health = self._health, {}
        return newest

    def _view_task(self, student_seen: CropFeatures, teacher_seen: CropFeatures, shares: Tensor | None) -> EsvitTask:
        images, pooled = student_seen.pooled.shape[0], teacher_seen.pooled
        targets = view_targets(images, self.global_views, self.all_views, student_seen.pooled.device)
        if shares is not None:
            pooled, targets = mixed_targets(pooled, targets, shares)
        return self._project_task("view", student_seen.pooled, pooled, targets)

    def _region_task(self, student_seen: CropFeatures, teacher_seen: CropFeatures) -> EsvitTask:
        student_cells = [cells.detach() for cells in student_seen.cells]
        targets = region_targets(student_cells, teacher_seen.cells, self.options.similarity)
        return self._project_task("region", torch.cat(student_seen.cells, 1), torch.cat(teacher_seen.cells, 1), targets)

    def _project_task(self, name: str, student: Tensor, teacher: Tensor, targets: Targets) -> EsvitTask:
        """Project the rows (B, R, P) of student and teacher, and record the teacher's mean score for its centre."""
        with torch.no_grad():
            teacher_rows, prototypes = self.teacher.project(name, teacher), self.teacher.prototypes(name)
            mean = mean_score(teacher_rows, prototypes)
        if self.training:
            self._means.setdefault(name, []).append(mean)
        student_rows, own_prototypes = self.student.project(name, student), self.student.prototypes(name)
        return EsvitTask(student_rows, own_prototypes, teacher_rows, prototypes, self._centre_of(name), targets)

    @torch.no_grad()
    def _record_health(self, student_seen: CropFeatures, teacher_seen: CropFeatures, temperature: float) -> None:
        health: dict[str, Tensor] = {}
        other = min(1, self.all_views - 1)  # a crop that is not the teacher's first
        rows = {
            "view": (student_seen.pooled[:, other], teacher_seen.pooled[:, 0]),
            "region": (_middle_cell(student_seen.cells[other]), _middle_cell(teacher_seen.cells[0])),
        }
        for name in self.options.weights():
            sharpness = Sharpness(self.options.student_temperature, temperature, self._centre_of(name))
            heads = self.student.head(name), self.teacher.head(name)
            values = task_health(*heads, rows[name][0].detach(), rows[name][1], sharpness)
            health |= {name_of(name, key): value for key, value in values.items()}
        health["teacher_distance"] = teacher_distance(self.student, self.teacher)
        health["teacher_temperature"] = health["teacher_distance"].new_full((), temperature)
        self._health = dict(zip(health, all_reduce_mean(torch.stack(list(health.values()))), strict=True))

    def _centre_of(self, name: str) -> Tensor:
        return self.get_buffer(f"centre_{name}")


def name_of(task: str, scalar: str) -> str:
    """Return the column name of a task's health metric.

    Example:
        >>> name_of("view", "agreement"), name_of("region", "agreement")
        ('agreement', 'region_agreement')
    """
    return scalar if task == "view" else f"{task}_{scalar}"


def _middle_cell(cells: Tensor) -> Tensor:
    return cells[:, cells.shape[1] // 2]


def mean_score(projections: Tensor, prototypes: Tensor) -> Tensor:
    """Return the (K,) mean over all rows of their scores, in float32 also inside autocast.

    Scores are linear in the projections, so their mean needs no scores.
    """
    with torch.autocast(projections.device.type, enabled=False):
        return projections.float().flatten(0, 1).mean(0) @ prototypes.float().T


def crop_size(group: Crops) -> Size:
    """Return (height, width) of a group of crops."""
    if group.sides is None:
        raise ValueError("a group of crops for self-distillation needs a size in pixels")
    return group.sides


def clip_each(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
    """Scale each gradient separately down to an L2 norm of `max_norm`, as EsViT's code does."""
    for parameter in parameters:
        if parameter.grad is not None:
            norm = torch.linalg.vector_norm(parameter.grad)
            parameter.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
