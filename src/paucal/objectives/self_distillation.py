"""Self-distillation without labels: EsViT (Li et al., ICLR 2022), or DINO with the view task alone.

The student gets all crops of an image; the teacher, a moving average of the student, gets only the global crops. For
every crop, the student is trained to predict the teacher's distribution over prototypes for another crop of the image.
For every cell (position) of a crop's feature map, the student is trained to predict the teacher's distribution for the
most similar cell of the other crop. Centring and sharpening the teacher's distributions prevents collapse.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.spec import BackboneSpec
from paucal.losses import (
    EsvitTask,
    Sharpness,
    Targets,
    effective_rank,
    entropy,
    esvit_loss,
    feature_spread,
    moved_centre,
    region_targets,
    view_pairs,
    view_targets,
)
from paucal.objectives.base import Objective
from paucal.objectives.distilled_network import (
    CropFeatures,
    ProjectionHead,
    SelfDistillationOptions,
    StudentOrTeacher,
    update_teacher,
)
from paucal.types import Batch, Crops, DataRequest, GroupScale, GroupScales, LossTerms, Progress


class SelfDistillation(Objective):
    """Self-distillation of any backbone with a feature map, with the view task and the region task.

    There are four differences from the published code. Any number of crop groups with any sizes is possible. The
    teacher and the centres are updated once per optimizer step, from all images of the step. Cells are matched in
    float32 even under autocast. `options.teacher_norm` selects the statistics that the teacher's batch norms use.

    Args:
        spec: Specification of a backbone without a classifier, with the image size of the global crops.
        crops: Groups of crops, each with its size; the global crops come first.
        options: Options of the method; None for the defaults.
        drop_path_rate: Stochastic depth rate of the student; the teacher has no stochastic depth.

    Raises:
        UserError: The backbone does not support the sizes of the crops.
        ValueError: There is no pair of crops to compare, or a group of crops has no size.
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
            raise ValueError(f"the loss compares pairs of crops and needs at least 2 per image, got {self.all_views}")
        sizes = [crop_size(group) for group in crops]
        self.student = StudentOrTeacher(spec.build(sizes, drop_path_rate), self.options, trained=True)
        self.teacher = StudentOrTeacher(spec.build(sizes, drop_path_rate=0.0), self.options, trained=False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        for name in self.options.weights():
            self.register_buffer(f"centre_{name}", torch.zeros(self.options.out_dim))
        self._mean_scores: dict[str, list[Tensor]] = {}
        self.data_request = DataRequest(tuple(crops), mixing=False, labels=False, smallest_batch=2)

    def train(self, mode: bool = True) -> "SelfDistillation":
        """Set the mode of all modules; if `teacher_norm` is "running", the teacher stays in evaluation mode."""
        super().train(mode)
        if self.options.teacher_norm == "running":
            self.teacher.eval()
        return self

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the loss "view" and, if the region task is used, the loss "region"."""
        crops = batch.views
        with torch.no_grad():
            teacher_features = self.teacher.extract(crops[: self.global_views])
        mix_weights = None
        if self.options.mixup and self.training:
            crops, mix_weights = mix_crops(crops, self.options.mixup)
        student_features = self.student.extract(crops)
        temperature = self.options.temperature(progress.epoch)
        images, teacher_rows = student_features.pooled.shape[0], teacher_features.pooled
        targets = view_targets(images, self.global_views, self.all_views, student_features.pooled.device)
        if mix_weights is not None:
            teacher_rows, targets = mix_targets(teacher_rows, targets, mix_weights)
        view_task = self._project_task("view", student_features.pooled, teacher_rows, targets)
        region_task = None
        if "region" in self.options.weights():
            student_cells, teacher_cells = student_features.cells, teacher_features.cells
            targets = region_targets([c.detach() for c in student_cells], teacher_cells, self.options.similarity)
            region_task = self._project_task(
                "region", torch.cat(student_cells, 1), torch.cat(teacher_cells, 1), targets
            )
        losses = esvit_loss(
            view_task,
            region_task,
            student_temperature=self.options.student_temperature,
            teacher_temperature=temperature,
        )
        values = {"view": losses.view}
        if losses.region is not None:
            values["region"] = losses.region
        if self.measures_health(progress):
            self._measure_health(student_features, teacher_features, temperature)
        return LossTerms(values, self.options.weights())

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the teacher's backbone, then the student's."""
        return [self.teacher.backbone, self.student.backbone]

    def deployable(self) -> nn.Module:
        """Return the timm model of the teacher's backbone."""
        return self.teacher.backbone.model

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return the weight decay of this step, divided by the highest weight decay of the run."""
        highest = self.options.highest_decay
        return {"main": GroupScale(weight_decay=self.options.decay(progress) / highest if highest else 0.0)}

    def before_step(self, progress: Progress) -> None:
        """Clip the gradient of each parameter separately; in the first epochs, also drop the prototypes' gradients."""
        if self.options.clip:
            clip_each_gradient(self.student.parameters(), self.options.clip)
        if progress.epoch < self.options.freeze_last_layer:
            for name in self.options.weights():
                for parameter in self.student.head(name).last_layer.parameters():
                    parameter.grad = None

    def after_step(self, progress: Progress) -> None:
        """Update the teacher from the student's weights, and the centres from the teacher's mean scores."""
        # `progress.step` already counts the completed step, but the momentum depends on the steps before that step.
        completed_step = Progress(progress.step - 1, progress.total_steps, progress.steps_per_epoch)
        momentum = self.options.teacher_momentum(completed_step)
        update_teacher(self.teacher, self.student, momentum, buffers=self.options.teacher_norm == "running")
        for name, means in self._mean_scores.items():
            centre = self.get_buffer(f"centre_{name}")
            centre.copy_(moved_centre(centre, torch.stack(means).mean(0), self.options.centre_momentum))
        self._mean_scores = {}

    def chance_levels(self) -> dict[str, float]:
        """Return ln K for each task, which is the loss if the student gives all K prototypes the same probability."""
        return dict.fromkeys(self.options.weights(), math.log(self.options.out_dim))

    def _project_task(self, name: str, student: Tensor, teacher: Tensor, targets: Targets) -> EsvitTask:
        """Return the loss inputs of a task, given the student's and the teacher's (B, R, P) features.

        In training, the teacher's mean scores are also stored for the next update of the centre.
        """
        head, teacher_head = self.student.head(name), self.teacher.head(name)
        with torch.no_grad():
            teacher_rows = teacher_head.project(teacher)
            teacher_prototypes = teacher_head.last_layer.scaled_prototypes()
            mean = compute_mean_score(teacher_rows, teacher_prototypes)
        if self.training:
            self._mean_scores.setdefault(name, []).append(mean)
        student_rows, prototypes = head.project(student), head.last_layer.scaled_prototypes()
        centre = self.get_buffer(f"centre_{name}")
        return EsvitTask(student_rows, prototypes, teacher_rows, teacher_prototypes, centre, targets)

    @torch.no_grad()
    def _measure_health(self, student: CropFeatures, teacher: CropFeatures, temperature: float) -> None:
        health: dict[str, Tensor] = {}
        student_crop = min(1, self.all_views - 1)  # another crop than the teacher's, if there are at least two crops
        student_cells, teacher_cells = student.cells[student_crop], teacher.cells[0]
        rows = {
            "view": (student.pooled[:, student_crop], teacher.pooled[:, 0]),
            # the cell in the middle of each feature map
            "region": (student_cells[:, student_cells.shape[1] // 2], teacher_cells[:, teacher_cells.shape[1] // 2]),
        }
        for name in self.options.weights():
            sharpness = Sharpness(self.options.student_temperature, temperature, self.get_buffer(f"centre_{name}"))
            heads = self.student.head(name), self.teacher.head(name)
            values = task_health(*heads, rows[name][0].detach(), rows[name][1], sharpness)
            health |= {metric if name == "view" else f"{name}_{metric}": value for metric, value in values.items()}
        health["teacher_distance"] = teacher_distance(self.student, self.teacher)
        health["teacher_temperature"] = health["teacher_distance"].new_full((), temperature)
        self.record_health(health)


def compute_mean_score(projections: Tensor, prototypes: Tensor) -> Tensor:
    """Return the (K,) mean of the scores of all rows, computed in float32 even under autocast."""
    # Scores are linear in the projections, so the scores of the mean projection are the mean scores.
    with torch.autocast(projections.device.type, enabled=False):
        return projections.float().flatten(0, 1).mean(0) @ prototypes.float().T


def crop_size(group: Crops) -> Size:
    """Return the (height, width) of a group of crops in pixels."""
    if group.sides is None:
        raise ValueError("each group of crops needs a size in pixels, got None")
    return group.sides


def clip_each_gradient(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
    """Clip the gradient of each parameter separately to an L2 norm of at most `max_norm`, as EsViT's code does."""
    for parameter in parameters:
        if parameter.grad is not None:
            norm = torch.linalg.vector_norm(parameter.grad)
            parameter.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))


@torch.no_grad()
def task_health(
    student: ProjectionHead,
    teacher: ProjectionHead,
    student_features: Tensor,
    teacher_features: Tensor,
    sharpness: Sharpness,
) -> dict[str, Tensor]:
    """Return the health metrics of one task, given the task's heads and (B, P) features of different crops.

    `evaluation.collapse` detects collapse with these metrics. The entropies are in nats: ln K if all K prototypes have
    the same probability, and 0 if one prototype has probability 1. `batch_entropy` is the entropy of the teacher's
    distribution averaged over the images, which is small if all images have the same most likely prototypes.
    `agreement` is the fraction of images for which teacher and student have the same most likely prototype.
    `feature_spread` and `effective_rank` are explained in `losses.feature_health`; the norms are L2 norms.
    """
    teacher_scores = teacher(teacher_features).float()
    teacher_probabilities = teacher_scores.sub(sharpness.centre).div(sharpness.teacher_temperature).softmax(1)
    student_probabilities = student(student_features).float().div(sharpness.student_temperature).softmax(1)
    return {
        "teacher_entropy": entropy(teacher_probabilities).mean(),
        "student_entropy": entropy(student_probabilities).mean(),
        "batch_entropy": entropy(teacher_probabilities.mean(0)),
        "agreement": (teacher_probabilities.argmax(1) == student_probabilities.argmax(1)).float().mean(),
        "feature_spread": feature_spread(teacher_features),
        "effective_rank": effective_rank(teacher_features),
        "feature_norm": torch.linalg.vector_norm(teacher_features.float(), dim=1).mean(),
        "centre_norm": torch.linalg.vector_norm(sharpness.centre),
    }


@torch.no_grad()
def teacher_distance(student: StudentOrTeacher, teacher: StudentOrTeacher) -> Tensor:
    """Return the L2 norm of the difference between the backbones' weights, divided by the norm of the student's."""
    pairs = list(zip(teacher.backbone.parameters(), student.backbone.parameters(), strict=True))
    squared_distance = torch.stack([(first - second).square().sum() for first, second in pairs]).sum()
    squared_norm = torch.stack([value.square().sum() for _, value in pairs]).sum()
    ratio = (squared_distance / squared_norm).sqrt()
    return ratio.full_tensor() if isinstance(ratio, DTensor) else ratio  # a DTensor if the weights are sharded


def mix_crops(crops: Sequence[Tensor], alpha: float) -> tuple[list[Tensor], Tensor]:
    """Mix each of V crops (B, C, H, W) with the corresponding crop of the previous image in the batch.

    EsViT's code has this option (timm's Mixup for each crop), which the paper does not mention. The (V,) weights of the
    original images, which are also returned, are drawn from a Beta distribution on the CPU.
    """
    mix_weights = torch.distributions.Beta(alpha, alpha).sample((len(crops),))
    pairs = zip(crops, mix_weights.tolist(), strict=True)
    return [weight * crop + (1 - weight) * crop.roll(1, 0) for crop, weight in pairs], mix_weights


def mix_targets(teacher: Tensor, targets: Targets, mix_weights: Tensor) -> tuple[Tensor, Targets]:
    """Return the teacher's rows and the targets for crops that `mix_crops` has mixed with the weights `mix_weights`.

    The cross-entropy is linear in the target, so a mixed crop is compared with the teacher's outputs for both images.
    `teacher` has (B, S, D) rows, one per crop; the result has (B, 2 * S, D) rows, those of each image followed by those
    of the previous image. `targets` has `rows` (B, V, J) and `weights` (V, J).
    """
    teacher_rows = torch.cat([teacher, teacher.roll(1, 0)], 1)
    rows = torch.cat([targets.rows, targets.rows + teacher.shape[1]], 2)
    weight = mix_weights.to(targets.weights.device, non_blocking=targets.weights.is_cuda)[:, None]
    return teacher_rows, Targets(rows, torch.cat([targets.weights * weight, targets.weights * (1 - weight)], 1))
