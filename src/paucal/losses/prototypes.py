"""Cross-entropy between a teacher's and a student's distributions over many prototypes, one chunk of images at a time.

In EsViT (Li et al., ICLR 2022) and DINO, the student and the teacher compute the scores of feature vectors ("rows", one
per crop or feature-map position) for K = 65,536 prototypes. A plain implementation keeps the scores of all rows for the
backward pass, once per pair of views, which takes gigabytes. Here the last layer and the loss are a single function
that has the scores of only a few images in memory:

- The logarithm of the softmax denominator is computed once per student row, not once per pair, since
  -sum_k p_k log softmax(s)_k = sum_k p_k * logsumexp(s) - sum_k p_k s_k.
- A row with several targets is compared with the weighted sum of the targets, since the cross-entropy is linear in the
  target.
- Targets are rows of the teacher's chunk, selected by index, so nothing is gathered for the whole batch.
- The gradient with respect to the scores has a closed form. The forward pass computes this gradient and multiplies it
  with rows and prototypes at once, so that the backward pass need not compute the scores again.

Scores are never rounded to half precision, because after division by a temperature of 0.04, the last bit of a bfloat16
score near 1 changes a probability by a factor of 1.1. Under autocast on CUDA, the factors of a matrix product are in
half precision, as in any layer, and the product is in float32. Other devices do not support such products, so
everything is computed in float32 there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_SCORES = 1 << 24  # number of scores of each network in memory at once, which take 64 MiB in float32
MAX_CUDA_CHUNK_SCORES = 1 << 27  # largest such number on CUDA (512 MiB); smaller chunks do not fully use a large GPU


@dataclass(frozen=True)
class Targets:
    """The teacher's rows with which each of the student's rows is compared.

    Attributes:
        rows: (B, R, J) int64 indices of J teacher rows, from 0 to S - 1, for each of an image's R student rows.
        weights: (B, R, J) or (R, J) float weight of each comparison; a comparison with weight 0 is left out.
    """

    rows: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Sharpness:
    """The temperatures and the centre that turn scores into distributions.

    Attributes:
        student_temperature: Divisor of the student's scores.
        teacher_temperature: Divisor of the teacher's scores, applied after the centre is subtracted.
        centre: (K,) centre that is subtracted from the teacher's scores.
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
    """Return the weighted cross-entropy H(teacher, student), summed over the comparisons and averaged over images.

    Only `student` and `prototypes` receive gradients. Inputs are converted to float32 or, for matrix products under
    autocast on CUDA, to half precision (see the top of this file).

    Args:
        student: (B, R, D) rows of the student.
        prototypes: (K, D) prototypes of the student.
        teacher: (B, S, D) rows of the teacher.
        teacher_prototypes: (K, D) prototypes of the teacher.
        targets: Teacher rows to compare with each student row, and the weights of the comparisons.
        sharpness: Temperatures and centre.
        chunk: Largest number of scores of each network in memory at once (a single image may exceed this number); None
            for the result of `chunk_size`.

    Returns:
        A scalar tensor, the mean over images of the sum over r and j of weight * H(p_teacher, p_student).
    """
    weights = targets.weights.expand(targets.rows.shape).to(torch.float32)
    options = sharpness, chunk or chunk_size(student.device)
    return _FusedLoss.apply(student, prototypes, teacher, teacher_prototypes, targets.rows, weights, options)  # type: ignore[no-any-return]


def chunk_size(device: torch.device) -> int:
    """Return the number of scores of each network to keep in memory at once.

    About four float32 tensors of this size exist at the same time. On a GPU, these tensors take at most a tenth of the
    GPU's memory, unless the minimum chunk takes more.
    """
    if device.type != "cuda" or not torch.cuda.is_available():  # a traced tensor may be on "cuda" without a GPU
        return CHUNK_SCORES
    # A tenth of the memory is divided among four tensors with 4 bytes per score: 10 * 4 * 4 = 160.
    scores = torch.cuda.get_device_properties(device).total_memory // 160
    return min(MAX_CUDA_CHUNK_SCORES, max(CHUNK_SCORES, scores))


class _FusedLoss(torch.autograd.Function):
    """Autograd function that computes the loss and its gradients together, in one loop over chunks of images."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        prototypes: Tensor,
        teacher: Tensor,
        teacher_prototypes: Tensor,
        rows: Tensor,
        weights: Tensor,
        options: tuple[Sharpness, int],
    ) -> Tensor:
        sharpness, chunk = options
        device_type = student.device.type
        dtype = _factor_dtype(device_type)
        # Weights are scaled so that their largest sum is 1, because otherwise small gradients would be 0 in float16.
        largest_weight = weights.sum(-1).amax().clamp(min=torch.finfo(torch.float32).tiny)
        weights = weights / largest_weight
        factors, teacher_factors = prototypes.to(dtype), teacher_prototypes.to(dtype)
        needs_gradient = ctx.needs_input_grad[:2]
        student_gradient = torch.zeros_like(student, dtype=torch.float32) if needs_gradient[0] else None
        prototype_gradient = torch.zeros_like(prototypes, dtype=torch.float32) if needs_gradient[1] else None
        loss = torch.zeros((), device=student.device)
        with torch.autocast(device_type, enabled=False):
            # At most `chunk` scores per network, but at least one image.
            n_images = max(1, chunk // (max(student.shape[1], teacher.shape[1]) * len(prototypes)))
            for start in range(0, len(student), n_images):
                chunk_slice = slice(start, start + n_images)
                student_rows = student[chunk_slice].flatten(0, 1).to(dtype)
                target_sum, weight_sum = _sum_targets(
                    teacher[chunk_slice].to(dtype), teacher_factors, rows[chunk_slice], weights[chunk_slice], sharpness
                )
                value, score_gradient = _summed_cross_entropy(
                    student_rows, factors, target_sum, weight_sum, sharpness.student_temperature, any(needs_gradient)
                )
                loss += value
                score_gradient = score_gradient.to(dtype)
                if student_gradient is not None:
                    student_gradient[chunk_slice] = matmul_float32(score_gradient, factors).view_as(
                        student[chunk_slice]
                    )
                if prototype_gradient is not None:
                    prototype_gradient += matmul_float32(score_gradient.T, student_rows)
        ctx.gradients = (student_gradient, prototype_gradient)
        ctx.scale = largest_weight / (sharpness.student_temperature * len(student))
        ctx.dtypes = (student.dtype, prototypes.dtype)
        return loss * largest_weight / len(student)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator hides the names)
        ctx: Any, *loss_gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        scale, pairs = loss_gradient[0] * ctx.scale, zip(ctx.gradients, ctx.dtypes, strict=True)
        student, prototypes = (None if gradient is None else (gradient * scale).to(dtype) for gradient, dtype in pairs)
        return student, prototypes, None, None, None, None, None


def matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices of the same dtype in float32, without rounding to half precision."""
    if left.dtype == torch.float32 or not _has_float32_output(left.device.type):
        return left.float() @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)


def _has_float32_output(device_type: str) -> bool:
    """Return whether `torch.mm` of half-precision factors can return float32."""
    return device_type == "cuda" and torch.version.hip is None


def _factor_dtype(device_type: str) -> torch.dtype:
    """Return the dtype for the factors of matrix products: the autocast dtype under autocast on CUDA, else float32."""
    uses_half_precision = torch.is_autocast_enabled(device_type) and _has_float32_output(device_type)
    return torch.get_autocast_dtype(device_type) if uses_half_precision else torch.float32


def _sum_targets(
    teacher: Tensor, prototypes: Tensor, rows: Tensor, weights: Tensor, sharpness: Sharpness
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the targets of each student row, (b * R, K), and the sum of the weights, (b * R, 1).

    The chunk has b images with R student rows each, and K is the number of prototypes.
    """
    n_images, rows_per_image = teacher.shape[0], teacher.shape[1]
    scores = matmul_float32(teacher.flatten(0, 1), prototypes.T)
    probabilities = scores.sub_(sharpness.centre).div_(sharpness.teacher_temperature).softmax(1)
    del scores
    first_rows = torch.arange(n_images, device=rows.device)[:, None, None] * rows_per_image
    row_numbers, row_weights = (rows + first_rows).flatten(0, 1), weights.flatten(0, 1)
    target_sum = probabilities[row_numbers[:, 0]].mul_(row_weights[:, :1])
    for index in range(1, row_numbers.shape[1]):
        target_sum.addcmul_(probabilities[row_numbers[:, index]], row_weights[:, index : index + 1])
    return target_sum, row_weights.sum(1, keepdim=True)


def _summed_cross_entropy(
    student: Tensor, prototypes: Tensor, target_sum: Tensor, weight_sum: Tensor, temperature: float, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy and, only if `with_gradient` is true, its gradient (b * R, K).

    The gradient is with respect to the scores after division by the temperature.
    """
    scores = matmul_float32(student, prototypes.T).div_(temperature)
    normaliser = scores.logsumexp(1, keepdim=True)
    # Batched matrix product for the dot product of each row, which avoids another (b * R, K) tensor.
    target_scores = torch.bmm(target_sum[:, None], scores[:, :, None])[:, :, 0]
    value = (weight_sum * normaliser - target_scores).sum()
    if with_gradient:
        # This is weight_sum * softmax(scores) - target_sum, computed in place to save memory.
        scores.sub_(normaliser - weight_sum.log()).exp_().sub_(target_sum)
    return value, scores
