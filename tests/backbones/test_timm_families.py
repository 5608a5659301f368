"""Models of many timm families at their own size: nothing here was written for one of them."""

import pytest
import timm
import torch

from paucal.backbones.features import FeatureBackbone
from paucal.types import FeatureRequest

NAMES = [
    "beit_base_patch16_224",
    "coat_tiny",
    "convit_tiny",
    "davit_tiny",
    "densenet121",
    "deit3_small_patch16_224",
    "edgenext_xx_small",
    "efficientformer_l1",
    "eva02_tiny_patch14_224",
    "fastvit_t8",
    "focalnet_tiny_srf",
    "gcvit_xxtiny",
    "gmlp_ti16_224",
    "hgnet_tiny",
    "hiera_tiny_224",
    "levit_128s",
    "mambaout_femto",
    "maxvit_tiny_rw_224",
    "mobilenetv3_small_050",
    "mobilevit_xxs",
    "mvitv2_tiny",
    "nest_tiny",
    "poolformer_s12",
    "repvit_m0_9",
    "resmlp_12_224",
    "sequencer2d_s",
    "swinv2_tiny_window8_256",
    "tiny_vit_5m_224",
    "tnt_s_legacy_patch16_224",
    "twins_pcpvt_small",
    "vgg11",
    "visformer_tiny",
    "vit_tiny_r_s16_p8_224",
    "volo_d1_224",
]
# Window-ordered tokens (Hiera, NesT), tokens with their sizes beside them (MViT), no blocks at all (VGG).
WITHOUT_BLOCKS = {"hiera_tiny_224", "nest_tiny", "mvitv2_tiny", "vgg11"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_any_timm_model__is_read_as_timm_reads_it(name: str) -> None:
    model = timm.create_model(name, num_classes=3).eval()
    size = model.default_cfg["input_size"]
    images = torch.randn(1, *size, generator=torch.Generator().manual_seed(0))
    backbone = FeatureBackbone(model, size[1:])
    with torch.no_grad():
        maps = model.forward_intermediates(images, intermediates_only=True)
        last, stages = backbone.extract(images, (FeatureRequest(), FeatureRequest("stages", norm=False)))
        assert torch.equal(last.logits, model(images))
        assert last.grids[0].shape[2:] == maps[-1].shape[2:]
        assert all(torch.equal(grid, timms) for grid, timms in zip(stages.grids, maps, strict=True))
        if name not in WITHOUT_BLOCKS:
            blocks = backbone(images, FeatureRequest("blocks", norm=False)).grids
            # Every block's grid is some stage's, and deeper never means finer.
            sides = [grid.shape[-1] for grid in blocks]
            assert sides == sorted(sides, reverse=True)
            assert sides[-1] == maps[-1].shape[-1]
