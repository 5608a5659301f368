"""Cross-entropy between a teacher's and a student's distributions over many prototypes, a chunk of images at a time.

Both networks of EsViT (Li et al., ICLR 2022) and DINO score rows of features against K = 65,536 prototypes. A plain
implementation keeps all scores of all rows for the backward pass, once per pair of views: gigabytes. Here the last
layer and the loss are one function that has the scores of only a few images in memory:

- the logarithm of the normaliser is computed once per student row, not once per pair, since
  -sum_k p_k log softmax(s)_k = sum_k p_k * logsumexp(s) - sum_k p_k s_k;
- a row with several targets is compared with their weighted sum, since the cross-entropy is linear in the target;
- targets are rows of the teacher's chunk, selected by index, so nothing is gathered for the whole batch;
- the gradient with respect to scores has a closed form and is converted at once to gradients of rows and prototypes, so
  nothing is computed twice.

Scores are never rounded: after division by a temperature of 0.04, the last bit of a bfloat16 score near 1 is a factor
of 1.1 in a probability. Where autocast is on, the factors of matrix products are rounded as in any layer, if the
device can give the product itself in float32 (CUDA); elsewhere everything is in float32.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 24  # scores of each network in memory at once: 64 MiB in float32
CUDA_CHUNK = 1 << 27  # 512 MiB; smaller chunks leave a GPU idle


@dataclass(frozen=True)
class Targets:
    """The teacher's rows that each student row is compared with.

    Attributes:
        rows: (B, R, J) int64, for each student row of an image J teacher rows of the same image, in [0, S).
        weights: (B, R, J) or (R, J) float, weight of each comparison; 0 to ignore it.
    """

    rows: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Sharpness:
    """The temperatures and the centre that turn scores into distributions.

    Attributes:
        student_temperature: Divides the student's scores.
        teacher_temperature: Divisor of the teacher's scores after the centre is subtracted.
        centre: (K,), subtracted from the teacher's scores.
    """

    student_temperature: float
    teacher_temperature: float
    centre: Tensor


def prototype_cross_entropy(
    student: Tensor,
    prototypes: Tensor,
    teacher: Tensor,
    teacher_prototypes: Tensor,
    targets: Targets,
    sharpness: Sharpness,
    chunk: int | None = None,
) -> Tensor:
    """Return the weighted cross-entropy from teacher to student, summed over rows and averaged over images.

    Inputs are converted to float32. Under autocast on CUDA the matrix product has half-precision inputs, see above.

    Args:
        student: (B, R, D), rows that get gradient.
        prototypes: (K, D), the student's; they get gradient.
        teacher: (B, S, D).
        teacher_prototypes: (K, D).
        targets: Pairs of rows to compare.
        sharpness: Temperatures and centre.
        chunk: Scores of a network in memory at once; at least those of one image. None for `chunk_size`.

    Returns:
        A scalar: mean over images of sum over r and j of weight * H(p_teacher, p_student).
    """
    weights = targets.weights.expand(targets.rows.shape).to(torch.float32)
    how = sharpness, chunk or chunk_size(student.device)
    return _FusedLoss.apply(student, prototypes, teacher, teacher_prototypes, targets.rows, weights, how)  # type: ignore[no-any-return]


def chunk_size(device: torch.device) -> int:
    """Return how many scores of a network to keep in memory at once.

    About four float32 tensors of this size exist at once: on a GPU at most a tenth of its memory.

    Example:
        >>> chunk_size(torch.device("cpu")) == 2**24
        True
    """
    if device.type != "cuda" or not torch.cuda.is_available():  # tracing may use the device type of a missing GPU
        return CHUNK
    return min(CUDA_CHUNK, max(CHUNK, torch.cuda.get_device_properties(device).total_memory // 160))


class _FusedLoss(torch.autograd.Function):
    """Computes the loss and its gradients in one pass over chunks of images."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        prototypes: Tensor,
        teacher: Tensor,
        teacher_prototypes: Tensor,
        rows: Tensor,
        weights: Tensor,
        how: tuple[Sharpness, int],
    ) -> Tensor:
        sharpness, chunk = how
        kind = student.device.type
        dtype = _factor_dtype(kind)
        # Gradients are scaled to be near 1: otherwise small weights of small probabilities would be 0 in float16.
        largest_weight = weights.sum(-1).amax().clamp(min=torch.finfo(torch.float32).tiny)
        weights = weights / largest_weight
        dense, teacher_dense = prototypes.to(dtype), teacher_prototypes.to(dtype)
        needs_gradient = ctx.needs_input_grad[:2]
        student_gradient = torch.zeros_like(student, dtype=torch.float32) if needs_gradient[0] else None
        dense_gradient = torch.zeros_like(prototypes, dtype=torch.float32) if needs_gradient[1] else None
        loss = torch.zeros((), device=student.device)
        with torch.autocast(kind, enabled=False):
            for part in _row_chunks(student, teacher, prototypes, chunk):
                student_rows = student[part].flatten(0, 1).to(dtype)
                target_sum, mass = _summed_targets(
                    teacher[part].to(dtype), teacher_dense, rows[part], weights[part], sharpness
                )
                value, slope = _summed_cross_entropy(
                    student_rows, dense, target_sum, mass, sharpness.student_temperature, any(needs_gradient)
                )
                loss += value
                slope = slope.to(dtype)
                if student_gradient is not None:
                    student_gradient[part] = product(slope, dense).view_as(student[part])
                if dense_gradient is not None:
                    dense_gradient += product(slope.T, student_rows)
        ctx.gradients = (student_gradient, dense_gradient)
        ctx.scale = largest_weight / (sharpness.student_temperature * len(student))
        ctx.dtypes = (student.dtype, prototypes.dtype)
        return loss * largest_weight / len(student)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator hides the names)
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.gradients, ctx.dtypes, strict=True)
        first, second = (None if g is None else (g * (outer[0] * ctx.scale)).to(dtype) for g, dtype in pairs)
        return first, second, None, None, None, None, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product in float32; with factors in half precision it is not rounded to half precision.

    Args:
        left: (N, D).
        right: (D, K), of the same dtype.
    """
    if left.dtype == torch.float32 or not _has_float32_output(left.device.type):
        return left.float() @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)


def _has_float32_output(device_type: str) -> bool:
    """Return whether `torch.mm` of half-precision factors can return float32."""
    return device_type == "cuda" and torch.version.hip is None


def _factor_dtype(device_type: str) -> torch.dtype:
    rounds = torch.is_autocast_enabled(device_type) and _has_float32_output(device_type)
    return torch.get_autocast_dtype(device_type) if rounds else torch.float32


def _row_chunks(student: Tensor, teacher: Tensor, prototypes: Tensor, chunk: int) -> list[slice]:
    largest_row = max(student.shape[1], teacher.shape[1]) * len(prototypes)
    count = max(1, chunk // largest_row)
    return [slice(start, start + count) for start in range(0, len(student), count)]


def _summed_targets(
    teacher: Tensor, prototypes: Tensor, rows: Tensor, weights: Tensor, sharpness: Sharpness
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of each student row's targets (b * R, K), and the sum of its weights (b * R, 1)."""
    images, width = teacher.shape[0], teacher.shape[1]
    scores = product(teacher.flatten(0, 1), prototypes.T)
    probabilities = scores.sub_(sharpness.centre).div_(sharpness.teacher_temperature).softmax(1)
    del scores
    first = torch.arange(images, device=rows.device)[:, None, None] * width
    flat, shares = (rows + first).flatten(0, 1), weights.flatten(0, 1)
    target_sum = probabilities[flat[:, 0]].mul_(shares[:, :1])
    for index in range(1, flat.shape[1]):
        target_sum.addcmul_(probabilities[flat[:, index]], shares[:, index : index + 1])
    return target_sum, shares.sum(1, keepdim=True)


def _summed_cross_entropy(
    student: Tensor, prototypes: Tensor, target_sum: Tensor, mass: Tensor, temperature: float, with_slope: bool
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy and its slope (b * R, K) with respect to the tempered scores."""
    scores = product(student, prototypes.T).div_(temperature)
    normaliser = scores.logsumexp(1, keepdim=True)
    aligned = torch.bmm(target_sum[:, None], scores[:, :, None])[:, :, 0]  # row by row, without another (b * R, K)
    value = (mass * normaliser - aligned).sum()
    if with_slope:
        scores.sub_(normaliser - mass.log()).exp_().sub_(target_sum)  # mass * softmax - goal, in few passes
    return value, scores
