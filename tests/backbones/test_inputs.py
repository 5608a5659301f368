"""What weights were tested with: the crops and moments of the papers' programs, else timm's."""

import pytest
import timm
import torch

from paucal.backbones.weights.checkpoints import (
    PROGRAMS,
    WeightsPreprocessing,
    checkpoint_preprocessing,
    find_program,
    from_scratch_preprocessing,
    timm_preprocessing,
)

NAMES = {program.name for program in PROGRAMS}
DINO = "facebookresearch/dino or microsoft/esvit"


@pytest.mark.parametrize(
    ("program", "model", "ratio"),
    [
        ("microsoft/esvit", "esvit_swin_tiny_patch4_window7_224", 224 / 256),
        (DINO, "vit_base_patch16_224", 224 / 256),
        ("yhlleo/VTs-Drloc", "resnet50", 224 / 256),
        ("yhlleo/VTs-Drloc", "t2t_vit_14", 224 / 256),
        ("ArieSeirack/DHVT", "dhvt_tiny_imagenet_patch16", 224 / 256),
        ("microsoft/CvT", "cvt_13", 224 / 256),
        ("microsoft/vision-longformer", "vil_tiny", 224 / 256),
        ("microsoft/Swin-Transformer", "swin_base_patch4_window7_224", 224 / 256),
        ("microsoft/Swin-Transformer", "swin_base_patch4_window12_384", 1.0),
        ("zihangJiang/TokenLabeling", "lvvit_s", 0.9),
        ("zihangJiang/TokenLabeling", "lvvit_l", 1.0),
        ("yitu-opensource/T2T-ViT", "t2t_vit_14", 0.9),
        ("", "deit_small_patch16_224", 224 / 256),
    ],
)
def test_file__is_fed_as_its_program_does(program, model, ratio):
    assert program == "" or program in NAMES
    assert checkpoint_preprocessing(program, model) == WeightsPreprocessing(ratio)
    assert checkpoint_preprocessing(program, model).mean == (0.485, 0.456, 0.406)


def test_file__of_no_known_program_is_fed_as_timm_has_it():
    assert checkpoint_preprocessing("", "vit_base_patch16_224") == WeightsPreprocessing(
        0.9, "bicubic", (0.5,) * 3, (0.5,) * 3
    )
    assert checkpoint_preprocessing("", "resnet50.tv_in1k").interpolation == "bilinear"
    assert timm_preprocessing("resnet50").crop_ratio == 0.95
    assert timm_preprocessing("no_such_model") == WeightsPreprocessing()


def test_program__is_found_inside_its_wrapping():
    state = timm.create_model("test_vit", num_classes=0).state_dict()
    teacher = {f"module.backbone.{name}": value for name, value in state.items()}
    teacher["module.head.last_layer.weight_v"] = torch.zeros(1)
    assert find_program({"teacher": teacher, "epoch": 3}) == DINO
    assert find_program({"state_dict": state}) == ""


@pytest.mark.parametrize("name", ["esvit_deit_small_patch16_224", "drloc_cvt_13", "esvit_vil_tiny", "cvt_13"])
def test_families__are_described_as_their_programs_test_them(name):
    assert timm_preprocessing(name) == WeightsPreprocessing()


def test_scratch__is_tested_as_the_family_is_and_never_as_timms_weights_are():
    assert from_scratch_preprocessing("t2t_vit_14").crop_ratio == 0.9
    assert from_scratch_preprocessing("lvvit_m").crop_ratio == 1.0
    assert (
        from_scratch_preprocessing("vit_base_patch16_224")
        == from_scratch_preprocessing("resnet50")
        == WeightsPreprocessing()
    )
