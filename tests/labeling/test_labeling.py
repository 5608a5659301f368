"""Teachers asked cell by cell, and the maps they leave."""

import pytest
import timm
import torch
from PIL import Image
from torch import nn

import paucal.backbones
from paucal.data.maps.reader import LabelMaps
from paucal.data.maps.store import LabelMapMetadata, MapWriter
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import WholeImageTransform
from paucal.labeling import DenseTeacher
from paucal.labeling.teacher import largest_logits
from paucal.types import UserError

assert paucal.backbones
SWIN = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "img_size": 64, "window_size": 4}
VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 64}
LVVIT = {**VIT, "stem_width": 8}


def teacher(name, **arguments):
    torch.manual_seed(0)
    return DenseTeacher(timm.create_model(name, num_classes=7, **arguments).eval(), (64, 64)).eval()


def images(count=2):
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet18", {}),
        ("swin_tiny_patch4_window7_224", SWIN),
        ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg", "class_token": False, "fc_norm": False}),
        ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg", "fc_norm": False}),
    ],
)
@torch.no_grad()
def test_cells__average_to_the_image_where_the_classifier_is_linear(name, arguments):
    dense = teacher(name, **arguments)
    maps, whole = dense(images())
    assert maps.shape == (2, 7, *dense.grid)
    torch.testing.assert_close(maps.mean((2, 3)), whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(whole, dense.backbone.model(images()))
    assert maps.std((2, 3)).min() > 0


@pytest.mark.parametrize(
    ("name", "arguments"), [("resnet18", {}), ("convnext_atto", {}), ("vit_tiny_patch16_224", VIT)]
)
@torch.no_grad()
def test_convolutions__laid_out_for_speed_give_the_models_own_answers(name, arguments):
    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=7, **arguments).eval()
    dense = teacher(name, **arguments)
    first = next(layer for layer in dense.modules() if isinstance(layer, nn.Conv2d))
    assert first.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(dense(images())[1], plain(images()), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_cells__are_in_the_places_of_the_grid():
    dense = teacher("resnet18")
    changed = images()
    changed[:, :, :32, 32:] += 3  # the upper right quarter
    difference = (dense(changed)[0] - dense(images())[0]).abs().sum((0, 1))
    assert difference.argmax() == 1  # of 2 x 2 cells, row by row


@torch.no_grad()
def test_class_token__is_replaced_by_each_cell():
    dense = teacher("vit_tiny_patch16_224", **VIT)
    model = dense.backbone.model
    tokens = model.forward_features(images())[:, 1:]
    expected = model.head(tokens).transpose(1, 2).unflatten(2, (4, 4))
    torch.testing.assert_close(dense(images())[0], expected)


@torch.no_grad()
def test_lvvit__is_asked_through_its_classifier_of_tokens():
    dense = teacher("lvvit_t", **LVVIT)
    whole, tokens = dense.backbone.model.dense_logits(dense.backbone.model.forward_features(images()))
    maps, combined = dense(images())
    torch.testing.assert_close(maps.flatten(2).transpose(1, 2), tokens)
    torch.testing.assert_close(combined, whole)


def test_teacher__without_a_classifier_is_refused():
    with pytest.raises(UserError, match="no classification head"):
        DenseTeacher(timm.create_model("resnet18", num_classes=0), (64, 64))


class Gridless(nn.Module):
    """Classifies the mean of what it sees, and never has a place for anything."""

    num_classes = num_features = 7

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 7)

    def forward_features(self, pixels):
        return pixels.mean((2, 3))

    def forward_head(self, features):
        return self.head(features)

    def get_classifier(self):
        return self.head


def test_teacher__without_a_grid_is_refused():
    with pytest.raises(UserError, match="Gridless has no spatial grid; choose a model with one"):
        DenseTeacher(Gridless(), (64, 64))


def test_strongest__keep_the_teachers_probabilities():
    maps = torch.randn(2, 30, 3, 3, generator=torch.Generator().manual_seed(2)) * 3 + 5
    values, indices = largest_logits(maps, 4)
    assert values.dtype == torch.float16
    filled = torch.zeros_like(maps).scatter(1, indices, values.float())
    expected, kept = maps.softmax(1), filled.softmax(1)
    torch.testing.assert_close(kept.gather(1, indices), expected.gather(1, indices), atol=2e-3, rtol=2e-3)
    # The others share what is left.
    rest = 1 - expected.gather(1, indices).sum(1)
    torch.testing.assert_close(kept.scatter(1, indices, 0).amax(1) * 26, rest, atol=2e-3, rtol=2e-2)


def test_strongest__of_fewer_classes_than_k_are_all_of_them():
    maps = torch.randn(1, 3, 2, 2)
    values, indices = largest_logits(maps, 5)
    assert values.shape == (1, 3, 2, 2)
    torch.testing.assert_close(values.float(), maps.gather(1, indices), atol=2e-3, rtol=2e-3)


def test_whole_image__is_squashed_not_cropped():
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 255, 0), (36, 0, 40, 20))  # the right tenth
    view, theta = WholeImageTransform((10, 10), Normalisation((0, 0, 0), (1, 1, 1)), "bilinear")(image)
    assert view[1, :, -1].min() > 0.8  # a centre crop would have left this column out
    assert view[0, :, 0].min() > 0.9
    assert torch.equal(theta, torch.eye(3)[:2])


def test_folder__of_something_else_is_left_alone(tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and has no label maps"):
        MapWriter(tmp_path, LabelMapMetadata("t", ("a", "b"), (2, 2), 1), ["x"], ["h"])
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"]


def test_folder__unfinished_is_not_read(tmp_path):
    writer = MapWriter(tmp_path / "maps", LabelMapMetadata("t", ("a", "b"), (2, 2), 1), ["x", "y"], ["h", "i"])
    assert writer.missing_positions.tolist() == [0, 1]
    writer.write([1], torch.ones(1, 1, 2, 2).half().numpy(), torch.ones(1, 1, 2, 2).long().numpy())
    with pytest.raises(UserError, match=r"unfinished \(1 of 2\)"):
        LabelMaps(tmp_path / "maps")
    again = MapWriter(tmp_path / "maps", LabelMapMetadata("t", ("a", "b"), (2, 2), 1), ["x", "y"], ["h", "i"])
    assert again.missing_positions.tolist() == [0]
    with pytest.raises(UserError, match="of other images or of another teacher"):
        MapWriter(tmp_path / "maps", LabelMapMetadata("t", ("a", "b"), (2, 2), 1), ["x", "z"], ["h", "i"])
