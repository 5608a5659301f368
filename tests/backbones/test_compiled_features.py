"""FeatureBackbone traced as one graph by torch.compile."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from backbones.reduced import BY_NAME
from paucal.types import FeatureRequest

REQUESTS = tuple(FeatureRequest(levels, norm) for levels in ("last", "stages", "blocks") for norm in (True, False))
MERGED = (FeatureRequest("merged"), FeatureRequest("merged", norm=False))
# Fewer blocks than elsewhere, since tracing takes as long as there are blocks; Swin's third is shifted.
BLOCKS = {
    "vit_tiny_patch16_224": {"depth": 2},
    "swin_tiny_patch4_window7_224": {"depths": (1, 2), "num_heads": (1, 2)},
    "resnet18": {"layers": (1, 1, 1, 1)},
}


@pytest.mark.parametrize("name", BLOCKS)
def test_compiled__equals_plain_in_one_graph_without_recompiling(name: str) -> None:
    torch._dynamo.reset()
    family = BY_NAME[name]
    family = family._replace(arguments={**family.arguments, **BLOCKS[name]})
    plain, requests = family.build(), (*REQUESTS, *MERGED) if name.startswith("swin") else REQUESTS
    compiled, counter = copy.deepcopy(plain), CompileCounter()
    compiled.compile(backend=counter, fullgraph=True)
    for seed in range(3):
        images = torch.randn(2, 3, *family.size, generator=torch.Generator().manual_seed(seed))
        for a, b in zip(plain.extract(images, requests), compiled.extract(images, requests), strict=True):
            torch.testing.assert_close(b.grids, a.grids)
            torch.testing.assert_close((b.pooled, b.logits), (a.pooled, a.logits))
    assert counter.frame_count == 1
    torch._dynamo.reset()
