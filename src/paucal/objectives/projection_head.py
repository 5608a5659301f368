"""The projection head of DINO and EsViT (Li et al., ICLR 2022, section 3): an MLP, then prototypes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INIT_STD = 0.02


class ProjectionHead(nn.Module):
    """Projects features to unit vectors that are compared with prototypes.

    The comparison itself is left to `losses.prototype_cross_entropy`, which never has all scores in memory; `forward`
    returns all of them, for few rows. Names of parameters are those of the published checkpoints.

    Args:
        dim: P, channels of the features.
        out_dim: K, prototypes.
        hidden_dim: Width of the hidden layers.
        bottleneck_dim: D, width of the unit vectors.
        layers: Linear layers of the MLP, at least 1.
        batch_norm: Whether hidden layers are batch-normalised.
        norm_last_layer: Whether prototypes have length 1; otherwise their lengths are learned.
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
            raise ValueError(f"a projection head has at least 1 layer, got {layers}")
        widths = [dim, *[hidden_dim] * (layers - 1), bottleneck_dim]
        parts: list[nn.Module] = []
        for number in range(layers):
            parts.append(nn.Linear(widths[number], widths[number + 1]))
            if number < layers - 1:
                parts += [nn.BatchNorm1d(hidden_dim), nn.GELU()] if batch_norm else [nn.GELU()]
        self.mlp = nn.Sequential(*parts) if layers > 1 else parts[0]
        for module in self.mlp.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)
        self.last_layer = Prototypes(bottleneck_dim, out_dim, norm_last_layer)

    def project(self, features: Tensor) -> Tensor:
        """Return (..., D) vectors of length 1 for (..., P) features, in float32 also inside autocast."""
        flat = self.mlp(features.flatten(0, -2)).float()
        return F.normalize(flat, dim=-1).unflatten(0, features.shape[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Return (..., K) scores for (..., P) features, in float32 also inside autocast.

        In half precision several prototypes could share the highest score of a row.
        """
        rows = self.project(features)
        with torch.autocast(rows.device.type, enabled=False):
            return rows @ self.last_layer.directions().float().T


class Prototypes(nn.Module):
    """A weight-normalised linear layer without bias, as tensors `weight_v` (K, D) and `weight_g` (K, 1)."""

    def __init__(self, dim: int, out_dim: int, fixed: bool) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(out_dim, 1), requires_grad=not fixed)
        self.weight_v = nn.Parameter(nn.Linear(dim, out_dim, bias=False).weight.detach())

    def directions(self) -> Tensor:
        """Return the (K, D) prototypes: `weight_v` scaled row by row to the length `weight_g`."""
        return self.weight_g * F.normalize(self.weight_v, dim=1)
