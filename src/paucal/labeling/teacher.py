"""A classifier asked at every cell of its last grid what it sees there."""

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import last_tensor
from paucal.backbones.spec import lay_out_convolutions
from paucal.types import UserError

CHUNK = 8192  # cells classified at once, so that a thousand classes need some dozen MiB


class DenseTeacher(nn.Module):
    """Any timm classifier with a grid, as a giver of dense labels.

    The classifier is applied to each cell as if the image consisted of it alone; where it reads the mean of the cells
    through linear layers, the mean over the cells is then the image's own logits. A model with an auxiliary head for
    tokens (LV-ViT) is asked through that. Source: Jiang et al. 2021, section 3.1, whose program does the same for
    convolutional networks and its own.

    Args:
        model: a timm model in evaluation mode. Its convolutions are laid out channels last, in place: the same values,
            and faster where a processor has many of them to do (benchmarks/token_labels.py).
        image_size: (height, width) in pixels of the images it gets.

    Raises:
        UserError: the model has no classifier, or no last grid that it reads.
    """

    def __init__(self, model: nn.Module, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.backbone = FeatureBackbone(lay_out_convolutions(model), image_size)
        if self.backbone.num_classes < 1:
            raise UserError("the teacher has no classifier: give a model that was trained on classes.")
        self._dense = getattr(model, "dense_logits", None) if getattr(model, "aux_head", None) is not None else None
        try:
            with torch.no_grad():
                weight = next(model.parameters())
                maps, _ = self(torch.zeros(1, getattr(model, "in_chans", 3), *image_size, device=weight.device))
        except (RuntimeError, TypeError, ValueError, IndexError) as problem:
            raise UserError(
                f"the teacher's classifier cannot be applied to single cells of its grid ({problem}): use a ResNet, "
                "ConvNeXt, Swin or ViT."
            ) from problem
        if maps.shape[1] != self.backbone.num_classes:
            raise UserError(
                "the teacher's classifier does not read its last grid: use a ResNet, ConvNeXt, Swin or ViT."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the maps."""
        return self.backbone.grid

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits at every cell (B, K, H, W) and those of the whole images (B, K)."""
        model = self.backbone.model
        final = model.forward_features(images)  # type: ignore[operator]
        if self._dense is not None:
            whole, tokens = self._dense(final)
            return tokens.transpose(1, 2).unflatten(2, self.grid), whole
        whole = model.forward_head(final)  # type: ignore[operator]
        cells = self.backbone(images).grids[0] if last_tensor(final).ndim == 2 else self._cells(final)
        return cells, whole

    def _cells(self, final: Tensor) -> Tensor:
        final = last_tensor(final)
        rows, columns = self.grid
        batch = final.shape[0]
        single = _single_cells(final, (rows, columns), int(getattr(self.backbone.model, "num_prefix_tokens", 0)))
        logits = torch.cat([self.backbone.model.forward_head(some) for some in single.split(CHUNK)])  # type: ignore[operator]
        return logits.reshape(batch, rows, columns, -1).permute(0, 3, 1, 2)


def _single_cells(final: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Return every cell as features of an image of one cell, in the layout that the classifier reads."""
    if final.ndim == 4 and tuple(final.shape[2:]) == grid:
        return final.permute(0, 2, 3, 1).flatten(0, 2)[:, :, None, None]
    if final.ndim == 4 and tuple(final.shape[1:3]) == grid:
        return final.flatten(0, 2)[:, None, None]
    if final.ndim == 3 and final.shape[1] == prefix + grid[0] * grid[1]:
        # The cell also takes the place of the class token, which the classifier may read instead.
        return final[:, prefix:].flatten(0, 1)[:, None].expand(-1, prefix + 1, -1)
    raise ValueError(f"features of shape {tuple(final.shape)} are no grid of {grid[0]}x{grid[1]} cells")
