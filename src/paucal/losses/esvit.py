"""The view loss and the region loss of EsViT (Li et al., ICLR 2022, section 3).

The student gets all crops of an image, the teacher only the global crops. Both networks predict a distribution over
prototypes for each crop and for each cell, or region, of a crop's feature map. In the view loss, the target for the
student's distribution of a crop is the teacher's distribution of another crop of the same image. In the region loss,
the target for a cell is the teacher's distribution of the most similar cell of the teacher's crop (equation 2).

Where the paper and the authors' code differ, this module follows the code: the teacher is the target (in
equation 1, the student is), the similarity is the cosine of backbone features (Algorithm 1 uses their dot product,
which is an option here), and the weight of each loss is 0.5 if both losses are used. The authors' code assumes two
sizes of crops; here crops may have any number of sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.distributed import all_reduce_mean
from paucal.losses.prototypes import Sharpness, Targets, prototype_cross_entropy

Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True)
class EsvitTask:
    """The inputs of the view loss or of the region loss. A row is a crop in the view loss, a cell in the region loss.

    The score of a row for a prototype is the dot product of the two vectors. If the scores for K prototypes are already
    computed, pass the scores as rows and `torch.eye(K)` as the prototypes.

    Attributes:
        student: (B, R, D) outputs of the student's projection head before the head's last layer.
        prototypes: (K, D) weight of the last layer of the student's head.
        teacher: (B, S, D) outputs of the teacher's projection head before the head's last layer.
        teacher_prototypes: (K, D) weight of the last layer of the teacher's head.
        centre: (K,) centre that is subtracted from the teacher's scores; see `moved_centre`.
        targets: Teacher rows with which each student row is compared, see `region_targets`. In the view loss, None
            stands for all pairs of different crops.
    """

    student: Tensor
    prototypes: Tensor
    teacher: Tensor
    teacher_prototypes: Tensor
    centre: Tensor
    targets: Targets | None = None


@dataclass(frozen=True)
class EsvitLoss:
    """The view loss, the region loss and their weighted sum, scalars.

    Attributes:
        view: View loss, unweighted.
        region: Region loss, unweighted; None if the region loss is not used.
        total: Sum of the two losses, weighted by `task_weights`.
    """

    view: Tensor
    region: Tensor | None
    total: Tensor


def esvit_loss(
    view: EsvitTask,
    region: EsvitTask | None = None,
    *,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.04,
    view_weight: float | None = None,
    region_weight: float = 0.5,
) -> EsvitLoss:
    """Return the loss of EsViT or, without `region`, the loss of DINO.

    Only the scores of a few images are in memory at the same time, see `prototype_cross_entropy`. The teacher receives
    no gradient.

    Args:
        view: Inputs of the view loss, with the global crops first.
        region: Inputs of the region loss, with targets from `region_targets`; None to compute the view loss alone.
        student_temperature: Divisor of the student's scores.
        teacher_temperature: Divisor of the teacher's scores, applied after the centre is subtracted.
        view_weight: Weight of the view loss, see `task_weights`.
        region_weight: Weight of the region loss.

    Raises:
        ValueError: There is no pair of different crops, or `region` has no targets.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> draw = lambda *shape: torch.randn(*shape, generator=generator)
        >>> prototypes, centre = torch.eye(16), torch.zeros(16)  # so the rows below are scores for 16 prototypes
        >>> crops, global_crops = torch.zeros(4, 6, 16), draw(4, 2, 16)  # 4 images with 6 crops, 2 of them global
        >>> view = EsvitTask(crops, prototypes, global_crops, prototypes, centre)
        >>> round(esvit_loss(view).total.item(), 4)  # ln 16, since the student's scores are all equal
        2.7726
        >>> cells, teacher_cells = [draw(4, 9, 16) for _ in range(6)], [draw(4, 9, 16) for _ in range(2)]
        >>> targets = region_targets(cells, teacher_cells)  # in training, from the backbone's features
        >>> region = EsvitTask(
        ...     torch.cat(cells, 1), prototypes, torch.cat(teacher_cells, 1), prototypes, centre, targets
        ... )
        >>> loss = esvit_loss(view, region)
        >>> bool(loss.total == (loss.view + loss.region) / 2)
        True
    """
    weights = task_weights(region is not None, view_weight, region_weight)
    images, crops = view.student.shape[:2]
    view_comparisons = view.targets or view_targets(images, view.teacher.shape[1], crops, view.student.device)

    def task_loss(task: EsvitTask, targets: Targets) -> Tensor:
        sharpness = Sharpness(student_temperature, teacher_temperature, task.centre)
        teacher = task.teacher, task.teacher_prototypes
        return prototype_cross_entropy(task.student, task.prototypes, *teacher, targets, sharpness)

    view_loss = task_loss(view, view_comparisons)
    if region is None:
        return EsvitLoss(view_loss, None, weights["view"] * view_loss)
    if region.targets is None:
        raise ValueError("the region loss needs targets: pass the result of region_targets as region.targets")
    region_loss = task_loss(region, region.targets)
    return EsvitLoss(view_loss, region_loss, weights["view"] * view_loss + weights["region"] * region_loss)


def task_weights(has_region: bool, view_weight: float | None = None, region_weight: float = 0.5) -> dict[str, float]:
    """Return the weights of the losses that are used, by the name of the loss.

    Args:
        has_region: Whether the region loss is used.
        view_weight: Weight of the view loss; None for 0.5 if the region loss is used, else 1.
        region_weight: Weight of the region loss.

    Example:
        >>> task_weights(False), task_weights(True)
        ({'view': 1.0}, {'view': 0.5, 'region': 0.5})
    """
    if not has_region:
        return {"view": 1.0 if view_weight is None else view_weight}
    return {"view": 0.5 if view_weight is None else view_weight, "region": region_weight}


def view_pairs(teacher_views: int, student_views: int) -> list[tuple[int, int]]:
    """Return all pairs (teacher's crop, student's crop) of two different crops, as indices of the batch's views.

    Global crops come first, and the teacher gets only global crops.

    Example:
        >>> view_pairs(2, 3)
        [(0, 1), (0, 2), (1, 0), (1, 2)]
        >>> len(view_pairs(2, 10))
        18
    """
    return [(target, crop) for target in range(teacher_views) for crop in range(student_views) if target != crop]


def view_targets(n_images: int, teacher_views: int, student_views: int, device: torch.device | str = "cpu") -> Targets:
    """Return the targets of the view loss, in which all pairs of different crops have the same weight.

    Args:
        n_images: Number of images B.
        teacher_views: Number of crops that the teacher gets.
        student_views: Number of crops that the student gets.
        device: Device of the result.

    Returns:
        Targets with `rows` (B, student_views, teacher_views) and `weights` (student_views, teacher_views).

    Raises:
        ValueError: There is no pair of different crops.
    """
    weights = _pair_weights(teacher_views, student_views, device)
    rows = torch.arange(teacher_views, device=device).expand(n_images, student_views, teacher_views)
    return Targets(rows, weights)


def region_targets(student: Sequence[Tensor], teacher: Sequence[Tensor], similarity: Similarity = "cosine") -> Targets:
    """Return the targets of the region loss, which is averaged over the cells of a crop, then over all pairs of crops.

    Because of this order, a cell of a small crop has a larger weight than a cell of a large crop.

    Args:
        student: One (B, T_v, P) tensor per crop with the student's backbone features of the crop's T_v cells.
        teacher: One (B, T_q, P) tensor per global crop with the teacher's backbone features of the crop's T_q cells.
        similarity: Measure by which the most similar cell is selected.

    Returns:
        Targets with `rows` (B, sum of T_v, number of global crops) and `weights` (sum of T_v, number of global crops).
    """
    pair_weights = _pair_weights(len(teacher), len(student), student[0].device)
    first_rows = list(accumulate([crop.shape[1] for crop in teacher[:-1]], initial=0))
    rows, weights = [], []
    for number, cells in enumerate(student):
        teacher_crops = zip(teacher, first_rows, strict=True)
        rows.append(torch.stack([match_regions(cells, crop, similarity) + start for crop, start in teacher_crops], 2))
        weights.append((pair_weights[number] / cells.shape[1]).expand(cells.shape[1], -1))
    return Targets(torch.cat(rows, 1), torch.cat(weights))


@torch.no_grad()
def match_regions(student: Tensor, teacher: Tensor, similarity: Similarity = "cosine") -> Tensor:
    """Return the index of the teacher's most similar cell in the image for each of the student's cells (equation 2).

    Several cells may have the same match. Features are compared in float32 even under autocast, where the authors' code
    compares features in half precision.

    Args:
        student: (B, T_s, P) features of the student's cells.
        teacher: (B, T_t, P) features of the teacher's cells.
        similarity: "cosine", or "dot" for the dot product as in Algorithm 1.

    Returns:
        (B, T_s) int64 indices from 0 to T_t - 1, without gradients.

    Example:
        >>> cells = torch.eye(3)[None]
        >>> match_regions(cells[:, [2, 0]], cells)
        tensor([[2, 0]])
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = student.float(), teacher.float()
        if similarity == "cosine":
            teacher = F.normalize(teacher, dim=2)  # the length of the student's features does not change the argmax
        return torch.bmm(student, teacher.transpose(1, 2)).argmax(2)


@torch.no_grad()
def moved_centre(centre: Tensor, mean: Tensor, momentum: float) -> Tensor:
    """Return the centre after a step, an exponential moving average of the teacher's mean scores over all processes.

    If any mean score is not finite, the centre is returned unchanged.

    Args:
        centre: (K,) centre before the step.
        mean: (K,) mean of this process's teacher scores, before the centre is subtracted and the temperature is
            applied. Every process must average the same number of rows.
        momentum: Weight of the old centre in the moving average.
    """
    mean = all_reduce_mean(mean)
    return torch.where(torch.isfinite(mean).all(), centre * momentum + mean * (1 - momentum), centre)


def _pair_weights(teacher_views: int, student_views: int, device: torch.device | str) -> Tensor:
    """Return a (student_views, teacher_views) matrix of equal weights, with 0 where both views are the same crop."""
    n_pairs = len(view_pairs(teacher_views, student_views))
    if not n_pairs:
        raise ValueError(
            f"there is no pair of different crops: the teacher gets {teacher_views} crops and the student "
            f"{student_views}; add a crop"
        )
    weights = torch.full((student_views, teacher_views), 1 / n_pairs, device=device)
    return weights.fill_diagonal_(0.0)
