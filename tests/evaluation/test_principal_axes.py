"""Principal axes of features."""

import pytest
import torch

from paucal.evaluation.principal_axes import principal_axes


@pytest.mark.parametrize("shape", [(300, 700), (700, 300)])
def test_axes__hold_the_most_variance_whichever_product_is_smaller(shape):
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -2, shape[1])
    axes = principal_axes(rows, 200)
    torch.testing.assert_close(axes.T @ axes, torch.eye(axes.shape[1]), atol=1e-4, rtol=0)
    variances = torch.linalg.svdvals(rows)[: axes.shape[1]]
    torch.testing.assert_close((rows @ axes).square().sum(0).sqrt().flip(0), variances, atol=1e-2, rtol=1e-3)
