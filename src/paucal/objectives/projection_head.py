"""The projection head of DINO and EsViT (Li et al., ICLR 2022, section 3), an MLP followed by a layer of prototypes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INIT_STD = 0.02  # standard deviation of the MLP's initial weights


class ProjectionHead(nn.Module):
    """Head that projects features to vectors of length 1 and computes the score of each vector for each prototype.

    In training, only `project` is used, and `losses.prototype_cross_entropy` computes the scores, for a few images at a
    time. `forward` returns the scores of all rows at once and is meant for few rows. Parameters have the same names as
    in the published checkpoints.

    Args:
        dim: Number of channels P of the features.
        out_dim: Number of prototypes K.
        hidden_dim: Width of the hidden layers.
        bottleneck_dim: Number of channels D of the projected vectors.
        layers: Number of linear layers of the MLP, at least 1.
        batch_norm: Whether hidden layers have batch norm.
        norm_last_layer: Whether all prototypes have length 1; if false, the lengths are learned.
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
            raise ValueError(f"a projection head needs at least 1 layer, got {layers}")
        widths = [dim, *[hidden_dim] * (layers - 1), bottleneck_dim]
        modules: list[nn.Module] = []
        for number in range(layers):
            modules.append(nn.Linear(widths[number], widths[number + 1]))
            if number < layers - 1:
                modules += [nn.BatchNorm1d(hidden_dim), nn.GELU()] if batch_norm else [nn.GELU()]
        self.mlp = nn.Sequential(*modules) if layers > 1 else modules[0]
        for module in self.mlp.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)
        self.last_layer = Prototypes(bottleneck_dim, out_dim, norm_last_layer)

    def project(self, features: Tensor) -> Tensor:
        """Return (..., D) float32 vectors of length 1 for (..., P) features."""
        flat = self.mlp(features.flatten(0, -2)).float()
        return F.normalize(flat, dim=-1).unflatten(0, features.shape[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Return the (..., K) scores of (..., P) features.

        The scores are computed in float32 even under autocast, because in half precision the highest scores of a row
        could become equal.
        """
        rows = self.project(features)
        with torch.autocast(rows.device.type, enabled=False):
            return rows @ self.last_layer.scaled_prototypes().float().T


class Prototypes(nn.Module):
    """The parameters of a weight-normalised linear layer without bias: `weight_v` (K, D) and `weight_g` (K, 1).

    Args:
        dim: Number of channels D.
        out_dim: Number of prototypes K.
        fixed: Whether the lengths `weight_g` are frozen.
    """

    def __init__(self, dim: int, out_dim: int, fixed: bool) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(out_dim, 1), requires_grad=not fixed)
        self.weight_v = nn.Parameter(nn.Linear(dim, out_dim, bias=False).weight.detach())

    def scaled_prototypes(self) -> Tensor:
        """Return the (K, D) prototypes, which are the rows of `weight_v` scaled to the lengths `weight_g`."""
        return self.weight_g * F.normalize(self.weight_v, dim=1)
