"""What LeJEPA chooses by itself, against its authors' README as the fact sheet of LeJEPA has it."""

import pytest

from paucal.methods.pretraining import resolve_pretraining, with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.rules.resolve import DataAndMachine, backbone_shape
from paucal.tasks.pretraining.assembly import make_crop_groups
from paucal.types import Crops

LARGE = DataAndMachine(100_000, 0, 400, device="cuda", bf16=True)


def chosen(facts: DataAndMachine = LARGE, **given) -> PretrainSettings:
    settings, _ = with_recipe(PretrainSettings(method="lejepa", **given), dict.fromkeys(given, "flag"))
    return resolve_pretraining(settings, facts)[0]


@pytest.mark.parametrize(
    ("model", "side", "decay", "shallow"),
    [
        ("resnet50", 98, 5e-4, "layers=[1,1,1,1]"),  # "5e-4 (ResNet)"
        ("convnext_atto", 98, 5e-4, "depths=[1,1,1,1]"),
        ("vit_small_patch14_dinov2", 98, 0.05, "depth=1"),  # "0.05 (ViT)"; 98 is seven patches of 14
        ("vit_small_patch16_224", 96, 0.05, "depth=1"),  # 98 is no whole number of patches of 16
        ("swin_tiny_patch4_window7_224", 96, 0.05, "depths=[1,1,1,1]"),
        ("esvit_swin_tiny_patch4_window7_224", 98, 0.05, "depths=[1,1,1,1]"),
        ("dhvt_tiny_imagenet_patch16", 98, 0.05, "depth=1"),  # convolutions and attention
    ],
)
def test_settings__are_those_of_the_authors_readme(model, side, decay, shallow):
    settings = chosen(model=model, model_args=[shallow], img_size=[224])
    # "2 global 224 (0.3 to 1) and 6 local 98 (0.05 to 0.3)"
    assert make_crop_groups(settings, (224, 224)) == [Crops(2, (224, 224), (0.3, 1.0)), Crops(6, side, (0.05, 0.3))]
    assert (settings.pipeline, settings.weight_decay, settings.clip) == ("alike", decay, 0.0)
    assert settings.min_lr == pytest.approx((settings.lr or 0) / 1000)  # "cosine to lr/1000"


def test_settings__without_local_crops_are_those_of_the_minimal_example():
    settings = chosen(model="resnet18", global_crops=4, local_crops=[0])
    assert settings.global_scale == [0.08, 1.0]  # "4, all RandomResizedCrop(128, 0.08 to 1)"


def test_settings__of_small_images_keep_crops_that_show_something():
    settings = chosen(DataAndMachine(9000, 0, 32, device="cpu"))
    assert (settings.pipeline, settings.global_scale, settings.local_scale) == ("alike", [0.3, 1.0], [0.2, 0.5])
    assert settings.local_size == [16]


def test_settings__that_are_given_win_and_esvit_keeps_its_own():
    given = {"pipeline": "dino", "local_size": [64], "weight_decay": 0.1}
    settings = chosen(model="resnet18", **given)
    assert {name: getattr(settings, name) for name in given} == given
    assert (settings.global_scale, settings.local_scale) == ([0.4, 1.0], [0.05, 0.4])
    other, _ = resolve_pretraining(PretrainSettings(model="resnet18"), LARGE)
    assert (other.pipeline, other.local_size, other.weight_decay) == ("dino", [96], 0.04)


@pytest.mark.parametrize(
    ("model", "convolutional"),
    [
        *(("resnet18", True), ("mobilenetv3_small_050", True), ("convnext_atto", True), ("regnety_002", True)),
        *(("deit_tiny_patch16_224", False), ("pvt_v2_b0", False), ("mixer_s16_224", False), ("cvt_13", False)),
    ],
)
def test_backbones__are_convolutional_where_nothing_else_joins_cells(model, convolutional):
    assert backbone_shape(model, None, [224]).convolutional is convolutional
