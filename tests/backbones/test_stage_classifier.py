"""The classifier that reads the last stages: its features, its place in a network, copies and gradients."""

import copy

import pytest
import timm
import torch
from torch import nn

from paucal.backbones import BackboneSpec
from paucal.backbones.stage_classifier import (
    N_STAGES,
    StageClassifier,
    StagePooling,
    add_stage_classifier,
    last_stage_poolings,
)
from paucal.labeling.teacher import DenseTeacher
from paucal.models.features import ClassifierInputExtractor, StageClassifierInputExtractor
from paucal.types import FeatureRequest, UserError

MODELS = {
    "tf_efficientnet_lite0": {},
    "resnet18": {"channels": (8, 8, 16, 24)},
    "swin_tiny_patch4_window7_224": {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
    "vit_tiny_patch16_224": {"depth": 4, "embed_dim": 32, "num_heads": 2},
    "convnext_nano": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 24)},
}
SIDE = 64


def small(name):
    arguments = dict(MODELS[name])
    torch.manual_seed(0)
    return BackboneSpec(name, 5, image_size=(SIDE, SIDE), arguments=arguments).build().eval()


def images(count=3):
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_features__are_means_and_deviations_over_the_cells(name):
    backbone = small(name)
    maps = last_stage_poolings(backbone.model, (SIDE, SIDE))
    assert len(maps) == N_STAGES
    reader, own = StageClassifierInputExtractor(backbone.model, (SIDE, SIDE)), ClassifierInputExtractor(backbone.model)
    with torch.no_grad():
        found, last = reader(images()), own(images())
        grids = backbone(images(), FeatureRequest("stages", norm=False)).grids[-N_STAGES:]
    expected = [last]
    for number in range(2):
        for grid in grids:
            cells = grid.flatten(2).double()
            value = cells.mean(2) if number == 0 else (cells - cells.mean(2, keepdim=True)).square().mean(2).sqrt()
            expected.append(value.float())
    torch.testing.assert_close(found, torch.cat(expected, 1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_classifier__is_linear_in_them(name):
    backbone = small(name)
    before = {key: value.clone() for key, value in backbone.model.state_dict().items()}
    reader = StageClassifierInputExtractor(backbone.model, (SIDE, SIDE))
    with torch.no_grad():
        features = reader(images())
    reader.close()
    model = add_stage_classifier(backbone.model, (SIDE, SIDE)).eval()
    layer = next(part for part in model.modules() if isinstance(part, StageClassifier))
    with torch.no_grad():
        torch.testing.assert_close(model(images()), features @ layer.weight.T + layer.bias, atol=1e-5, rtol=1e-4)
    own = {key for key in before if before[key].shape != model.state_dict()[key].shape}
    assert len(own) == 1  # the classifier's weight
    assert set(model.state_dict()) == set(before)


def test_classifier__of_a_copy_reads_the_copys_maps():
    model = add_stage_classifier(small("resnet18").model, (SIDE, SIDE))
    other = copy.deepcopy(model)
    with torch.no_grad():
        expected = model(images())
        for value in model.parameters():
            value.zero_()
        torch.testing.assert_close(other(images()), expected)


def test_classifier__passes_gradients_to_the_stages():
    model = add_stage_classifier(small("resnet18").model, (SIDE, SIDE))
    pixels = images().requires_grad_()
    model(pixels).sum().backward()
    assert pixels.grad is not None
    assert bool(pixels.grad.isfinite().all())
    layer = model.get_submodule("fc")
    with torch.no_grad():
        layer.weight[:, : layer.in_features - 2 * sum(one.channels for one in layer.pool.poolings)] = 0
    again = images().requires_grad_()
    model(again).sum().backward()  # through the stages alone
    assert float(again.grad.abs().sum()) > 0


def test_map__that_is_constant_has_a_finite_gradient():
    cells = torch.ones(2, 3, 4, 4, requires_grad=True)
    mean, spread = StagePooling("x", "nchw", 0, 3).pool(cells)
    (mean + spread).sum().backward()
    assert bool(cells.grad.isfinite().all())


def test_classifier__without_the_maps_of_its_images_says_so():
    model = add_stage_classifier(small("resnet18").model, (SIDE, SIDE))
    with torch.no_grad():
        model(images())
        with pytest.raises(RuntimeError, match="outputs of the last stages are missing"):
            model.get_submodule("fc")(torch.zeros(3, 24))


def test_classifier__of_a_network_that_has_none_is_refused():
    with pytest.raises(UserError, match="needs a linear classifier"):
        add_stage_classifier(timm.create_model("resnet18", num_classes=0), (SIDE, SIDE))
    assert last_stage_poolings(nn.Sequential(nn.Linear(3, 3)), (SIDE, SIDE)) == ()


@pytest.mark.parametrize("name", MODELS)
def test_features__of_a_backbone_with_it_have_the_models_logits(name):
    backbone = small(name)
    add_stage_classifier(backbone.model, (SIDE, SIDE))
    with torch.no_grad():
        expected = backbone.model.eval()(images())
        for request in (FeatureRequest(), FeatureRequest("stages")):
            torch.testing.assert_close(backbone(images(), request).logits, expected, atol=1e-5, rtol=1e-4)


def test_part_of_the_last_features__leaves_out_stages_and_bias():
    model = add_stage_classifier(small("resnet18").model, (SIDE, SIDE)).eval()
    layer, features = model.get_submodule("fc"), torch.randn(4, 24)
    with layer.last_features_alone():
        torch.testing.assert_close(layer(features), features @ layer.weight[:, :24].T)


def test_teacher__has_the_images_logits_as_the_mean_of_its_cells():
    model = add_stage_classifier(small("resnet18").model, (SIDE, SIDE)).eval()
    with torch.no_grad():
        cells, whole = DenseTeacher(model, (SIDE, SIDE))(images())
        torch.testing.assert_close(whole, model(images()))
    assert cells.shape == (3, 5, *cells.shape[2:])
    torch.testing.assert_close(cells.mean((2, 3)), whole)
    assert float(cells.flatten(2).std(2).min()) > 0
