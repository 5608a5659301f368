"""A teacher that classifies each position of its last feature map, and the creation of label maps with a teacher."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import last_tensor
from paucal.backbones.spec import use_channels_last
from paucal.backbones.stage_classifier import stage_classifier
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.maps.store import MapWriter
from paucal.data.views.transforms import ViewTransform
from paucal.types import Batch, UserError

POSITIONS_PER_CHUNK = 8192  # number of positions that are classified at once; their logits for 1000 classes need 32 MiB
Advance = Callable[[int, int], None]  # function that reports progress, called with (images done, total images)
MAX_LOGIT = 60000.0  # logits are clipped to +-MAX_LOGIT, as the largest float16 number is 65504


class DenseTeacher(nn.Module):
    """A timm classifier whose classification head is applied to each position of its last feature map.

    The features at a position are classified as if the whole image had these features. If the head applies linear
    layers to the mean of the features, the mean of the logits over the positions equals the logits of the image. For a
    model with an auxiliary head for tokens (LV-ViT), the auxiliary head is used. Source: Jiang et al. 2021, section
    3.1; the code of the paper does the same for convolutional networks and for LV-ViT.

    The model must be in evaluation mode. Its convolutions are changed in place to channels-last layout, which is faster
    on a CPU and gives the same outputs (benchmarks/token_labels.py).
    """

    def __init__(self, model: nn.Module, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.backbone = FeatureBackbone(use_channels_last(model), image_size)
        if self.backbone.num_classes < 1:
            raise UserError("the teacher has no classification head: choose a model that classifies images.")
        self._dense = getattr(model, "dense_logits", None) if getattr(model, "aux_head", None) is not None else None
        try:
            with torch.no_grad():
                weight = next(model.parameters())
                maps, _ = self(torch.zeros(1, getattr(model, "in_chans", 3), *image_size, device=weight.device))
        except (RuntimeError, TypeError, ValueError, IndexError) as problem:
            raise UserError(
                "the teacher's classification head cannot be applied to single positions of its feature map "
                f"({problem}): use a ResNet, ConvNeXt, Swin or ViT."
            ) from problem
        if maps.shape[1] != self.backbone.num_classes:
            raise UserError(
                "the teacher's classification head does not use its last feature map: use a ResNet, ConvNeXt, Swin "
                "or ViT."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and number of columns of the maps."""
        return self.backbone.grid

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (B, K, H, W) logits at each position and the (B, K) logits of the images."""
        model = self.backbone.model
        final = model.forward_features(images)  # type: ignore[operator]
        if self._dense is not None:
            image_logits, tokens = self._dense(final)
            return tokens.transpose(1, 2).unflatten(2, self.grid), image_logits
        image_logits = model.forward_head(final)  # type: ignore[operator]
        if last_tensor(final).ndim == 2:
            return self.backbone(images).grids[0], image_logits
        stages = stage_classifier(model)
        if stages is None:
            return self._position_logits(final), image_logits
        with stages.last_features_alone():
            position_logits = self._position_logits(final)
        # The classifier also reads pooled features of earlier stages, which add the same logits at each position.
        return position_logits + (image_logits - position_logits.mean((2, 3)))[:, :, None, None], image_logits

    def _position_logits(self, final: Tensor) -> Tensor:
        """Return the (B, K, H, W) logits of the head, applied to each position as a separate 1x1 feature map."""
        final, model, grid = last_tensor(final), self.backbone.model, self.grid
        prefix = int(getattr(model, "num_prefix_tokens", 0))
        if final.ndim == 4 and tuple(final.shape[2:]) == grid:
            positions = final.permute(0, 2, 3, 1).flatten(0, 2)[:, :, None, None]
        elif final.ndim == 4 and tuple(final.shape[1:3]) == grid:
            positions = final.flatten(0, 2)[:, None, None]
        elif final.ndim == 3 and final.shape[1] == prefix + grid[0] * grid[1]:
            # The patch token also replaces the prefix tokens, since the head may read only the class token.
            positions = final[:, prefix:].flatten(0, 1)[:, None].expand(-1, prefix + 1, -1)
        else:
            shape = tuple(final.shape)
            raise ValueError(f"features of shape {shape} are not a feature map of {grid[0]}x{grid[1]} positions")
        logits = torch.cat([model.forward_head(chunk) for chunk in positions.split(POSITIONS_PER_CHUNK)])  # type: ignore[operator]
        return logits.reshape(len(final), *grid, -1).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class TeacherAccuracy:
    """Accuracies of a teacher on a sample of labelled images, as fractions."""

    images: int
    image_accuracy: float  # accuracy of the logits of the whole image
    map_accuracy: float  # accuracy of the mean of the map's logits; measures the quality of the label maps


@torch.inference_mode()
def measure_teacher_accuracy(
    teacher: DenseTeacher,
    images: ImageSet,
    positions: NDArray[np.int64],
    transform: ViewTransform,
    device: torch.device,
    batch_size: int = 32,
) -> TeacherAccuracy:
    """Compute a teacher's accuracy on the labelled images at `positions` of a set."""
    n_correct = torch.zeros(2)
    for batch in make_eval_loader(images, positions, transform, batch_size):
        maps, image_logits = teacher(batch.views[0].to(device))
        labels = batch.labels.to(device)
        for index, logits in enumerate((image_logits, maps.mean((2, 3)))):
            n_correct[index] += (logits.argmax(1) == labels).sum().item()
    image_accuracy, map_accuracy = (n_correct / max(len(positions), 1)).tolist()
    return TeacherAccuracy(len(positions), image_accuracy, map_accuracy)


def write_maps(
    teacher: DenseTeacher, writer: MapWriter, loader: Iterable[Batch], top: int, advance: Advance | None = None
) -> None:
    """Write the maps of the images in `writer.missing_positions`, which a loader yields, with the `top` classes."""
    n_done, device = len(writer) - len(writer.missing_positions), next(teacher.parameters()).device
    for batch in loader:
        with torch.inference_mode():
            maps, _ = teacher(batch.to(device, non_blocking=True).views[0])
            values, indices = largest_logits(maps, top)
        writer.write(batch.ids.tolist(), values.cpu().numpy(), indices.cpu().numpy())
        n_done += len(batch)
        if advance is not None:
            advance(n_done, len(writer))


def largest_logits(maps: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return the k = `top` largest of (B, K, H, W) logits, shifted so that all others count as 0, and their classes.

    Readers of a map use the logit 0 for all omitted classes. Subtracting the logarithm of the mean exponential of the
    omitted logits therefore preserves the teacher's probabilities. The published maps store unshifted logits. The
    results are (B, k, H, W), float16 and int64.
    """
    maps = maps.float()
    values, indices = maps.topk(min(top, maps.shape[1]), 1)
    n_omitted = maps.shape[1] - values.shape[1]
    if n_omitted:
        omitted_sum = maps.scatter(1, indices, float("-inf")).logsumexp(1, keepdim=True)
        values = values - (omitted_sum - torch.tensor(float(n_omitted)).log())
    return values.clamp(-MAX_LOGIT, MAX_LOGIT).half(), indices
