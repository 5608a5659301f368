"""Convolutions laid out channels last compute what they computed before."""

import copy

import timm
import torch
from torch import nn

from paucal.backbones import BackboneSpec
from paucal.backbones.spec import use_channels_last


def is_channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)


def test_layout__changes_the_order_in_memory_and_no_value() -> None:
    torch.manual_seed(0)
    plain = timm.create_model("resnet10t", num_classes=3).eval()
    other = use_channels_last(copy.deepcopy(plain))
    for name, weight in plain.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight)
    weights = [module.weight for module in other.modules() if isinstance(module, nn.Conv2d)]
    assert len(weights) > 10
    assert all(is_channels_last(weight) for weight in weights)
    x = torch.randn(2, 3, 64, 64)
    assert is_channels_last(other.forward_features(x))
    assert not is_channels_last(plain.forward_features(x))
    torch.testing.assert_close(other(x), plain(x), rtol=1e-4, atol=1e-5)


def test_built_backbone__is_laid_out_also_once_weights_are_loaded_and_moved() -> None:
    small = {"patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}
    model = BackboneSpec("vit_tiny_patch16_224", 3, image_size=(16, 16), arguments=small).build().model
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    weight = copy.deepcopy(model).to("cpu").patch_embed.proj.weight
    assert is_channels_last(weight)
    assert not weight.is_contiguous()
    assert torch.equal(weight, state["patch_embed.proj.weight"])
