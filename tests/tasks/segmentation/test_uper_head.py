"""UPerNet's head and the network around it."""

import pytest
import timm
import torch
from torch import nn

from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.empty_models import meta_device
from paucal.backbones.stage_maps import PyramidBackbone
from paucal.tasks.segmentation.network import (
    FcnHead,
    PyramidPooling,
    SegmentationNetwork,
    UperHead,
    build_segmentation_network,
)

TINY = "test_resnet"


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def counted_head(channels, classes, width) -> int:
    """The parameters of mmseg's UPerHead, added up by hand."""

    def conv(before, after, side):
        return before * after * side * side + 2 * after

    *finer, deepest = channels
    pooled = 4 * conv(deepest, width, 1) + conv(deepest + 4 * width, width, 3)
    pyramid = sum(conv(n, width, 1) + conv(width, width, 3) for n in finer)
    return pooled + pyramid + conv(len(channels) * width, width, 3) + width * classes + classes


@pytest.mark.parametrize(("channels", "width"), [((96, 192, 384, 768), 512), ((24, 40, 112, 320), 64), ((8, 16), 12)])
def test_head__has_the_layers_of_the_papers(channels, width):
    with meta_device():
        head = UperHead(channels, 150, width)
    assert count(head) == counted_head(channels, 150, width)


def test_swin_tiny__has_the_published_number_of_parameters():
    """60 M in the Swin paper's table 3, with the auxiliary head."""
    with meta_device():
        model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=0)
        norms = sum(2 * n for n in (96, 192, 384, 768))  # a layer norm on each map, in the place of the last norm
        head, auxiliary = UperHead((96, 192, 384, 768), 150), FcnHead(384, 150)
    whole = count(model) - 2 * 768 + norms + count(head) + count(auxiliary)
    assert whole == pytest.approx(59.94e6, rel=2e-4)


def test_pyramid_pooling__sees_the_map_as_a_whole():
    pooling = PyramidPooling(4, 8, (1,)).eval()
    grid = torch.zeros(1, 4, 12, 12)
    changed = grid.clone()
    changed[..., 0, 0] = 5.0
    far = (pooling(changed) - pooling(grid))[..., 6:, 6:].abs().max()
    assert float(far.detach()) > 0


def test_head__gives_logits_at_the_finest_map_and_gradient_to_all_of_it():
    head = UperHead((8, 16, 32), 5, width=12, dropout=0.0)
    maps = [torch.randn(2, n, 32 // s, 48 // s, requires_grad=True) for n, s in ((8, 2), (16, 4), (32, 8))]
    logits = head(maps)
    assert logits.shape == (2, 5, 16, 24)
    logits.square().sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in head.parameters())
    assert all(one.grad is not None and float(one.grad.abs().sum()) > 0 for one in maps)
    with pytest.raises(ValueError, match="two maps or more"):
        UperHead((8,), 5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (TINY, {}),
        ("test_vit", {}),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}),
    ],
)
def test_network__gives_pixels_their_classes_for_backbones_of_three_kinds(name, arguments):
    spec = BackboneSpec(name, 0, image_size=(64, 96), arguments=arguments)
    network = build_segmentation_network(spec, 3, width=8)
    logits = network(torch.randn(2, 3, 64, 96))
    assert logits.shape == (2, 3, 64, 96)
    logits.square().mean().backward()
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
    assert all(p.grad is not None for p in trained.values()), [n for n, p in trained.items() if p.grad is None]


def test_network__leaves_out_what_images_were_padded_with():
    network = SegmentationNetwork(
        PyramidBackbone(FeatureBackbone(timm.create_model(TINY, num_classes=0), (64, 64))), 2, width=8
    ).eval()
    images = torch.randn(1, 3, 50, 70)
    padded = nn.functional.pad(images, (0, 26, 0, 14))
    with torch.no_grad():
        assert torch.equal(network(images), network(padded)[..., :50, :70])


def test_auxiliary_head__reads_the_map_of_stride_16():
    network = build_segmentation_network(BackboneSpec(TINY, 0, image_size=(64, 64)), 4, width=8)
    assert network.maps.strides[network.auxiliary_level] == 16
    head = network.make_auxiliary_head(6)
    assert head(network.maps(torch.randn(2, 3, 64, 64))[network.auxiliary_level]).shape == (2, 4, 4, 4)


def test_head__agrees_with_another_program_in_shapes_and_size():
    smp = pytest.importorskip("segmentation_models_pytorch", reason="segmentation-models-pytorch is not installed")
    theirs = smp.UPerNet("tu-resnet18", encoder_weights=None, classes=5, decoder_channels=64)
    ours = build_segmentation_network(BackboneSpec("resnet18", 0, image_size=(224, 224)), 5, width=64)
    images = torch.randn(2, 3, 64, 96)
    logits = ours(images), theirs(images)
    assert logits[0].shape == logits[1].shape
    logits[0].square().mean().backward()
    assert all(p.grad is not None for p in ours.parameters())
    norms = 2 * (64 + 128 + 256 + 512)  # their layer norm on each map, which ours has for transformers alone
    assert count(ours) == count(theirs) - norms
