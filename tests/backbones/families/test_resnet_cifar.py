"""The ResNet for small images: its stem, its cells and its size."""

import pytest
import timm
import torch

import paucal.backbones  # noqa: F401 (registers the model)
from paucal.backbones import BackboneSpec


def build(**arguments):
    return timm.create_model("resnet18_cifar", num_classes=5, **arguments).eval()


def test_stem__keeps_every_pixel_and_the_stages_end_in_4x4_cells():
    model = build(channels=(8, 16, 24, 32))
    assert (model.conv1.kernel_size, model.conv1.stride, model.conv1.out_channels) == ((3, 3), (1, 1), 8)
    shapes = [tuple(grid.shape[1:]) for grid in model.forward_intermediates(torch.zeros(1, 3, 32, 32))[1]]
    assert shapes == [(8, 32, 32), (8, 32, 32), (16, 16, 16), (24, 8, 8), (32, 4, 4)]
    assert model.feature_info[0]["reduction"] == 1


def test_parameters__are_those_of_resnet18_but_for_the_stem():
    ours, theirs = timm.create_model("resnet18_cifar"), timm.create_model("resnet18", num_classes=100)
    difference = sum(p.numel() for p in theirs.parameters()) - sum(p.numel() for p in ours.parameters())
    assert difference == 64 * 3 * (7 * 7 - 3 * 3)


@pytest.mark.parametrize(("stride", "output", "side"), [(2, None, 4), (2, 8, 8), (1, 4, 16), (1, 2, 32)])
def test_strides__set_the_last_grid(stride, output, side):
    model = build(channels=(8, 16, 24, 32), stem_stride=stride, output_stride=output)
    assert model.forward_features(torch.zeros(1, 3, 64, 64)).shape[2:] == (side, side)
    assert model.feature_info[-1]["reduction"] == 64 // side


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stem_stride": 4}, "stem_stride is 4; give 1 or 2"),
        ({"output_stride": 16}, "output_stride is 16; give one of 8, 4, 2"),
        ({"channels": (9, 18, 36, 72)}, "the first stage has 9 channels; give an even number"),
    ],
)
def test_arguments__that_do_not_do_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**arguments)


def test_backbone__needs_no_other_arguments_at_32_pixels():
    backbone = BackboneSpec("resnet18_cifar", 10, image_size=(32, 32), arguments={"channels": [8, 16, 24, 32]}).build()
    assert backbone.grid == (4, 4)
