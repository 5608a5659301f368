"""The losses of EsViT (Li et al., ICLR 2022, section 3): the rows that are compared, and their weights.

A student sees all crops of an image, a teacher only the global ones. The view loss asks that the student's
distribution for a crop is the teacher's for another crop; the region loss asks the same of every cell, whose
counterpart is the most similar cell of the teacher's crop (equation 2).

Where the paper and the authors' code differ we follow the code, as Algorithm 1 does: the teacher is the target
(equation 1 prints the opposite), the similarity is the cosine of backbone features (Algorithm 1: their dot product, an
option here), and each task counts half where both are on. The authors' code assumes two groups of crops; here there may
be any number of groups of any size.
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
    """The tensors that one of the two tasks compares: rows are crops in the view task, cells in the region task.

    The score of a row for a prototype is their product. Scores for K prototypes that are computed already can be passed
    as rows, with `torch.eye(K)` as prototypes.

    Attributes:
        student: (B, R, D), outputs of the student's projection head.
        prototypes: (K, D), the last layer of that head.
        teacher: (B, S, D), outputs of the teacher's projection head.
        teacher_prototypes: (K, D).
        centre: (K,), subtracted from the teacher's scores; see `moved_centre`.
        targets: (query, key) rows to compare; for crops None compares all pairs of different crops. For cells, see
            `region_targets`.
    """

    student: Tensor
    prototypes: Tensor
    teacher: Tensor
    teacher_prototypes: Tensor
    centre: Tensor
    targets: Targets | None = None


@dataclass(frozen=True)
class EsvitLoss:
    """The two parts of the loss and their weighted sum, scalars.

    Attributes:
        view: View loss, over crops.
        region: Region loss, over cells; None without cells.
        total: The sum by `task_weights`.
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
    """Return the loss of EsViT or, without regions, the loss of DINO.

    The scores of only a few images are held at once, see `prototype_cross_entropy`. The teacher gets no gradient.

    Args:
        view: Crops of the student and of the teacher, global ones first.
        region: Their cells, with the targets of `region_targets`.
        student_temperature: Divides the student's scores.
        teacher_temperature: Divisor of the teacher's scores after the centre is subtracted.
        view_weight: See `task_weights`.
        region_weight: See `task_weights`.

    Raises:
        ValueError: there is no pair of crops, or the cells come without targets.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> draw = lambda *shape: torch.randn(*shape, generator=generator)
        >>> prototypes, centre = torch.eye(16), torch.zeros(16)  # the rows are scores of 16 prototypes
        >>> crops, global_crops = torch.zeros(4, 6, 16), draw(4, 2, 16)  # of 4 images; the teacher sees 2 crops of 6
        >>> view = EsvitTask(crops, prototypes, global_crops, prototypes, centre)
        >>> round(esvit_loss(view).total.item(), 4)  # ln 16: this student finds all prototypes equally likely
        2.7726
        >>> cells, goals = [draw(4, 9, 16) for _ in range(6)], [draw(4, 9, 16) for _ in range(2)]
        >>> aim = region_targets(cells, goals)  # as a rule of the backbone's features, not of the projected ones
        >>> region = EsvitTask(torch.cat(cells, 1), prototypes, torch.cat(goals, 1), prototypes, centre, aim)
        >>> found = esvit_loss(view, region)
        >>> bool(found.total == (found.view + found.region) / 2)
        True
    """
    weights = task_weights(region is not None, view_weight, region_weight)
    images, crops = view.student.shape[:2]
    pairs = view.targets or view_targets(images, view.teacher.shape[1], crops, view.student.device)

    def task_loss(task: EsvitTask, targets: Targets) -> Tensor:
        sharpness = Sharpness(student_temperature, teacher_temperature, task.centre)
        teacher = task.teacher, task.teacher_prototypes
        return prototype_cross_entropy(task.student, task.prototypes, *teacher, targets, sharpness)

    view_loss = task_loss(view, pairs)
    if region is None:
        return EsvitLoss(view_loss, None, weights["view"] * view_loss)
    if region.targets is None:
        raise ValueError("cells need targets that say which of the teacher's each is compared with: region_targets")
    region_loss = task_loss(region, region.targets)
    return EsvitLoss(view_loss, region_loss, weights["view"] * view_loss + weights["region"] * region_loss)


def task_weights(region: bool, view_weight: float | None = None, region_weight: float = 0.5) -> dict[str, float]:
    """Return the weight of each task that is on.

    Args:
        region: Whether the region task is used.
        view_weight: Weight of the view task; None for 0.5 beside the region task and 1 alone.
        region_weight: Weight of the region task.

    Example:
        >>> task_weights(False), task_weights(True)
        ({'view': 1.0}, {'view': 0.5, 'region': 0.5})
    """
    if not region:
        return {"view": 1.0 if view_weight is None else view_weight}
    return {"view": 0.5 if view_weight is None else view_weight, "region": region_weight}


def view_pairs(teacher_views: int, student_views: int) -> list[tuple[int, int]]:
    """Return all pairs (teacher's crop, student's crop) of two different crops.

    Crops are numbered as in a batch, global ones first.

    Example:
        >>> view_pairs(2, 3)
        [(0, 1), (0, 2), (1, 0), (1, 2)]
        >>> len(view_pairs(2, 10))
        18
    """
    return [(q, v) for q in range(teacher_views) for v in range(student_views) if q != v]


def view_targets(images: int, teacher_views: int, student_views: int, device: torch.device | str = "cpu") -> Targets:
    """Return the targets of the view loss, which is the mean over all pairs.

    Args:
        images: Number of images B.
        teacher_views: Crops the teacher sees, its rows.
        student_views: Crops the student sees, its rows.
        device: Device of the result.

    Returns:
        `rows` (B, student_views, teacher_views), `weights` (student_views, teacher_views).

    Raises:
        ValueError: there is no pair.
    """
    weights = _pair_weights(teacher_views, student_views, device)
    rows = torch.arange(teacher_views, device=device).expand(images, student_views, teacher_views)
    return Targets(rows, weights)


def region_targets(student: Sequence[Tensor], teacher: Sequence[Tensor], similarity: Similarity = "cosine") -> Targets:
    """Return the targets of the region loss, which is a mean over a crop's cells, then over all pairs.

    A cell of a small crop thus counts more than one of a large crop.

    Args:
        student: Features of the student's cells, per crop (B, T_v, P), before the head.
        teacher: Features of the teacher's cells, per global crop (B, T_q, P).
        similarity: Measure by which the most similar cell is found.

    Returns:
        `rows` (B, sum of T_v, teacher crops), `weights` (sum of T_v, teacher crops).
    """
    pair = _pair_weights(len(teacher), len(student), student[0].device)
    starts = list(accumulate([part.shape[1] for part in teacher[:-1]], initial=0))
    rows, weights = [], []
    for number, cells in enumerate(student):
        pairs = zip(teacher, starts, strict=True)
        rows.append(torch.stack([match_regions(cells, part, similarity) + start for part, start in pairs], 2))
        weights.append((pair[number] / cells.shape[1]).expand(cells.shape[1], -1))
    return Targets(torch.cat(rows, 1), torch.cat(weights))


@torch.no_grad()
def match_regions(student: Tensor, teacher: Tensor, similarity: Similarity = "cosine") -> Tensor:
    """Return for each cell of the student the most similar cell of the teacher in the same image (equation 2).

    The choice is hard and gets no gradient; several cells may have the same match. Features are compared in float32,
    also inside autocast (the authors' code compares in half precision there).

    Args:
        student: (B, T_s, P).
        teacher: (B, T_t, P).
        similarity: "cosine", or "dot" as in Algorithm 1.

    Returns:
        (B, T_s) int64.

    Example:
        >>> cells = torch.eye(3)[None]
        >>> match_regions(cells[:, [2, 0]], cells)
        tensor([[2, 0]])
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = student.float(), teacher.float()
        if similarity == "cosine":
            teacher = F.normalize(teacher, dim=2)  # the length of the student's own feature changes no arg-max
        return torch.bmm(student, teacher.transpose(1, 2)).argmax(2)


@torch.no_grad()
def moved_centre(centre: Tensor, mean: Tensor, momentum: float) -> Tensor:
    """Return the centre after a step: an exponential average of the teacher's mean score, over all processes.

    A mean that is not finite leaves the centre where it is.

    Args:
        centre: (K,).
        mean: (K,), the mean of the teacher's scores, before temperature and centre, on this process; every process
            must have the same number of rows.
        momentum: Share of the old centre.
    """
    mean = all_reduce_mean(mean)
    return torch.where(torch.isfinite(mean).all(), centre * momentum + mean * (1 - momentum), centre)


def _pair_weights(teacher_views: int, student_views: int, device: torch.device | str) -> Tensor:
    """Return (student_views, teacher_views): 1 / the number of pairs, 0 for a crop with itself."""
    pairs = len(view_pairs(teacher_views, student_views))
    if not pairs:
        raise ValueError(f"{teacher_views} crops of a teacher and {student_views} of a student make no pair")
    weights = torch.full((student_views, teacher_views), 1 / pairs, device=device)
    return weights.fill_diagonal_(0.0)
