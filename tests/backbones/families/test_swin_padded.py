"""Swin as published for images of any size, beside timm's, whose weights it takes."""

import pytest
import timm
import torch
from torch import nn
from torchvision.models.swin_transformer import shifted_window_attention

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.swin_esvit import ARGUMENTS_BY_NAME, PREFIX, PaddedSwinBlock
from paucal.rules.training import drop_path

SMALL = {"embed_dim": 16, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 2, 4), "num_classes": 5, "drop_path_rate": 0.0}
TINY = "swin_tiny_patch4_window7_224"


def pair(side: int = 224) -> tuple[nn.Module, nn.Module]:
    """Return the published Swin and timm's, reduced, with the same visible weights."""
    torch.manual_seed(0)
    sizes = {**SMALL, "img_size": side}
    ours, theirs = (
        timm.create_model(f"{PREFIX}{TINY}", **sizes),
        timm.create_model(TINY, **sizes, strict_img_size=False),
    )
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)
    theirs.load_state_dict(ours.state_dict())
    return ours.eval(), theirs.eval()


@pytest.mark.parametrize("name", ARGUMENTS_BY_NAME)
def test_models__have_the_parameters_and_the_weights_of_timm_s(name: str):
    with meta_device():
        ours, theirs = (timm.create_model(one) for one in (f"{PREFIX}{name}", name))
    assert {key: value.shape for key, value in ours.state_dict().items()} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }
    mine, timms = (timm.get_pretrained_cfg(one) for one in (f"{PREFIX}{name}", name))
    assert mine is not None
    assert timms is not None
    assert (mine.hf_hub_id, mine.tag, mine.mean, mine.license) == (timms.hf_hub_id, timms.tag, timms.mean, "mit")
    assert {norm.eps for norm in ours.modules() if isinstance(norm, nn.LayerNorm)} == {1e-5}
    assert drop_path(f"{PREFIX}{name}") == drop_path(name)


def test_outputs__are_timm_s_where_maps_divide_into_windows_and_not_elsewhere():
    ours, theirs = pair()
    whole, other = torch.randn(1, 3, 224, 224), torch.randn(1, 3, 200, 304)
    with torch.no_grad():
        torch.testing.assert_close(ours(whole), theirs(whole), rtol=1e-5, atol=1e-5)
        maps = [model.forward_intermediates(other, intermediates_only=True) for model in (ours, theirs)]
    shares = [float(((a - b).abs() > 1e-3).any(1).float().mean()) for a, b in zip(*maps, strict=True)]
    assert min(shares) > 0.02
    assert max(shares) > 0.5


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("size", [(25, 38), (13, 19), (50, 76)])
def test_blocks__pad_before_they_shift(stage: int, size: tuple[int, int]):
    """As torchvision's operator does, at the maps of 800x1216 pixels among others."""
    ours, _ = pair(448)
    for place in (0, 1):
        block = ours.get_submodule(f"layers.{stage}.blocks.{place}")
        assert isinstance(block, PaddedSwinBlock)
        x, layer = torch.randn(1, *size, 16 * 2**stage), block.attn
        expected = shifted_window_attention(
            x,
            layer.qkv.weight,
            layer.proj.weight,
            layer._get_rel_pos_bias(),
            list(block.window_size),
            layer.num_heads,
            list(block.shift_size),
            qkv_bias=layer.qkv.bias,
            proj_bias=layer.proj.bias,
            training=False,
        )
        assert block.window_size == (7, 7)
        assert block.shift_size == (3 * place, 3 * place)
        torch.testing.assert_close(block._attn(x), expected, rtol=1e-4, atol=1e-4)
