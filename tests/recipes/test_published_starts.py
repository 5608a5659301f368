"""What recipes that tune start from: weights of ImageNet-1k alone, or what was given; never from nothing."""

from types import SimpleNamespace
from typing import Any

import pytest
import timm

from cli.calls import failure
from paucal.data.decode import DecodeOptions
from paucal.methods.training import imagenet_alone, with_recipe
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.recipes.recipe import require_init
from paucal.recipes.table import RECIPES
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo
from paucal.runner.images import normalisation
from paucal.types import UserError

TUNING = [name for name in RECIPES if "finetune" in name or "high-resolution" in name]


@pytest.mark.parametrize(
    ("model", "started"),
    [
        ("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224"),  # whose default tag is of ImageNet-1k
        ("swin_base_patch4_window7_224", "swin_base_patch4_window7_224.ms_in1k"),
        ("resnet50", "resnet50.tv_in1k"),  # the official weights at the paper's time
        ("vit_base_patch16_224", "vit_base_patch16_224.augreg_in1k"),
        ("vit_base_patch16_224.augreg2_in21k_ft_in1k", "vit_base_patch16_224.augreg2_in21k_ft_in1k"),  # was asked for
        ("convnext_tiny", "convnext_tiny.fb_in1k"),
        ("t2t_vit_14", "t2t_vit_14"),  # timm has no weights, which is said where they are read
    ],
)
def test_drloc__is_tuned_from_weights_of_imagenet_1k_alone(model, started):
    given = {"recipe": "flag", "model": "flag"}
    settings, origin = with_recipe(TrainSettings(recipe="drloc-finetune", model=model), given)
    assert (settings.model, settings.init) == (started, "timm")
    assert ("only ImageNet-1k" in origin["model"]) == (started != model)
    own, _ = with_recipe(TrainSettings(recipe="drloc-finetune", model=model, init="runs/1"), {**given, "init": "flag"})
    assert own.model == model


def test_tags__of_more_than_imagenet_1k_are_never_taken():
    for name in ("vit_small_patch16_224", "resnet50", "convnext_small", "swin_small_patch4_window7_224"):
        tag = imagenet_alone(name, "x").partition(".")[2] or timm.get_pretrained_cfg(name).tag
        assert tag.endswith("in1k")
        assert not {"ft", "in21k", "in22k", "in12k", "ig1b"} & set(tag.split("_"))
    with pytest.raises(UserError, match=r"timm has no such weights for vit_large_patch16_224. Choose another --model"):
        imagenet_alone("vit_large_patch16_224", "drloc-finetune")


@pytest.mark.parametrize(
    ("model", "mean"),
    [
        ("swin_tiny_patch4_window7_224", (0.485, 0.456, 0.406)),
        ("resnet50", (0.485, 0.456, 0.406)),
        ("vit_base_patch16_224", (0.5, 0.5, 0.5)),  # how Google's weights were made
    ],
)
def test_moments__are_those_of_the_weights(model, mean):
    settings, _ = with_recipe(TrainSettings(recipe="drloc-finetune", model=model), {"model": "flag"})
    start = InitialWeightsInfo("timm's weights", normalise="model")
    resolved, _ = resolve(settings, DataAndMachine(50000, 10, 32, initial_weights=start))
    assert resolved.normalise == "model"
    coloured: Any = SimpleNamespace(images=SimpleNamespace(decode_options=DecodeOptions()))
    assert normalisation(resolved, coloured).mean == pytest.approx(mean)


@pytest.mark.parametrize("name", TUNING)
def test_tuning__of_random_weights_is_refused_and_a_start_brings_its_moments(name):
    recipe = RECIPES[name]
    assert "normalise" not in recipe.settings
    if "init" not in recipe.settings:
        settings, _ = with_recipe(TrainSettings(recipe=name), {})
        with pytest.raises(UserError, match=rf"--recipe {name} starts from .*give --init"):
            require_init(RECIPES, name, settings.init)
    with pytest.raises(UserError, match=rf"--recipe {name} starts from"):
        require_init(RECIPES, name, with_recipe(TrainSettings(recipe=name, init=None), {"init": "config"})[0].init)
    settings, _ = with_recipe(TrainSettings(recipe=name, init="runs/1"), {"init": "flag"})
    require_init(RECIPES, name, settings.init)
    start = InitialWeightsInfo("runs/1", normalise="imagenet")
    assert resolve(settings, DataAndMachine(9000, 10, 300, initial_weights=start))[0].normalise == "imagenet"


def test_command__says_so_in_one_sentence(capsys, tmp_path):
    message = failure(capsys, "train", "--recipe", "dhvt-finetune", "--output", tmp_path / "run")
    assert "which are not published for DHVT: give --init a run, such as one of --recipe dhvt-imagenet" in message
    assert not (tmp_path / "run").exists()
