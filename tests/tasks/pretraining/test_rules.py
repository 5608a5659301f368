"""Settings of pre-training chosen from the images: published values at the published scale, rules below it."""

import pytest

from paucal.methods.pretraining import resolve_pretraining as resolve
from paucal.methods.pretraining import with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.recipes.esvit import RECIPES
from paucal.rules.resolve import DataAndMachine
from paucal.types import UserError

IMAGENET = DataAndMachine(1_281_167, 0, 400, device="cuda", devices=8, bf16=True)
CIFAR = DataAndMachine(10_000, 0, 32, device="cpu")


def chosen(facts, **given):
    settings, reasons = resolve(PretrainSettings(**given), facts)
    assert all(reasons.values())
    return settings


def test_a_million_images__get_the_published_run():
    settings = chosen(IMAGENET)
    assert settings.model == "swin_tiny_patch4_window7_224"
    assert (settings.img_size, settings.local_crops, settings.local_size) == ([224], [8], [96])
    assert (settings.global_scale, settings.local_scale, settings.blur) == ([0.4, 1.0], [0.05, 0.4], [0.1, 2.0])
    assert (settings.epochs, settings.warmup_epochs, settings.warmup_teacher_epochs) == (300, 10.0, 30)
    assert (settings.teacher_temperature, settings.tasks, settings.head_norm) == (0.07, "view+region", "none")
    assert (settings.out_dim, settings.hidden_dim, settings.bottleneck_dim) == (65536, 2048, 256)
    assert settings.batch_size == 64  # on each of 8 devices: the published 512
    assert settings.lr == pytest.approx(1e-3)
    assert settings.momentum == pytest.approx(0.996)
    assert settings.drop_path == 0.1


@pytest.mark.parametrize(("images", "published"), [(2_400_000, 150), (7_500_000, 50), (14_200_000, 30)])
def test_larger_sets__are_seen_as_many_times_in_all(images, published):
    """Tables 5 and 11: 150, 50 and 30 epochs; ours are within a fifth."""
    settings = chosen(DataAndMachine(images, 0, 400, device="cuda", devices=8))
    assert settings.epochs == pytest.approx(published, rel=0.2)
    assert settings.epochs * images == pytest.approx(300 * 1_281_167, rel=0.02)


def test_few_small_images__get_a_small_short_run():
    settings = chosen(CIFAR, model="vit_mini")
    assert (settings.img_size, settings.local_crops, settings.local_size) == ([32], [4], [16])
    assert (settings.tasks, settings.head_norm, settings.out_dim) == ("view", "batch", 2048)
    assert (settings.epochs, settings.teacher_temperature) == (15, 0.04)
    assert settings.lr == pytest.approx(1e-3)
    assert 0.98 <= settings.momentum < 0.996
    assert settings.blur == [0.014, 0.286]


def test_region_task__that_joins_later_is_both_tasks():
    assert chosen(CIFAR, model="vit_mini", region_after=5).tasks == "view+region"
    assert chosen(CIFAR, model="vit_mini", epochs=100).tasks == "view+region"


def test_momentum__is_the_same_average_over_images_at_another_batch():
    whole, half = (chosen(IMAGENET, model="vit_mini", batch_size=size).momentum for size in (64, 32))
    assert half**2 == pytest.approx(whole, rel=1e-5)


def test_no_local_crops__widen_the_global_ones():
    assert chosen(CIFAR, model="vit_mini", local_crops=[0]).global_scale == [0.14, 1.0]
    assert chosen(CIFAR, model="vit_mini", local_size=[16, 12]).local_crops == [4, 4]


def test_recipes__hold_the_published_runs():
    assert {name: recipe.settings.get("region_after") for name, recipe in RECIPES.items()} == {
        "esvit-swin-tiny": None,
        "esvit-swin-tiny-1024": None,
        "esvit-swin-small": None,
        "esvit-swin-base": 200,
        "esvit-swin-tiny-w14": 200,
        "esvit-swin-small-w14": 180,
        "esvit-swin-base-w14": 200,
        "esvit-deit-small": None,
        "esvit-vil-tiny": 200,
        "esvit-cvt-tiny": 200,
        "esvit-resnet50": 200,
        "esvit-small-batch": None,
    }
    drop = {
        name: RECIPES[name].settings["drop_path"] for name in ("esvit-swin-tiny", "esvit-swin-base", "esvit-resnet50")
    }
    assert drop == {"esvit-swin-tiny": 0.1, "esvit-swin-base": 0.2, "esvit-resnet50": 0.0}
    assert RECIPES["esvit-swin-base-w14"].settings["learn_lengths"] is False
    fields = PretrainSettings.__dataclass_fields__
    for recipe in RECIPES.values():
        assert set(recipe.settings) <= set(fields)
        PretrainSettings(**recipe.settings)


def test_recipe__gives_way_to_what_is_given():
    settings, origin = with_recipe(PretrainSettings(recipe="esvit-swin-base", epochs=5), {"epochs": "flag"})
    assert (settings.epochs, settings.region_after) == (5, 200)
    assert (origin["epochs"], origin["momentum"]) == ("flag", "recipe esvit-swin-base")
    alone, _ = with_recipe(PretrainSettings(recipe="esvit-swin-base", tasks="view"), {"tasks": "flag"})
    assert (alone.tasks, alone.region_after) == ("view", None)
    joined, _ = with_recipe(PretrainSettings(recipe="esvit-deit-small", region_after=200), {"region_after": "flag"})
    assert resolve(joined, IMAGENET)[0].tasks == "view+region"  # the recipe's own is the view task alone
    assert resolve(settings, IMAGENET)[0].lr == pytest.approx(1e-3 * 8 * 32 / 512)
    with pytest.raises(UserError, match="did you mean 'esvit-swin-tiny'"):
        with_recipe(PretrainSettings(recipe="esvit-swin-tinny"), {})
