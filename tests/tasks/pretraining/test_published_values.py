"""Every value of EsViT's recipes against the figure it is from, as its fact sheet numbers them."""

from typing import Any

import pytest
from lightning.pytorch import Callback

from paucal.methods.pretraining import resolve_pretraining as resolve
from paucal.methods.pretraining import with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.self_distillation import _loss_options
from paucal.recipes.esvit import RECIPES
from paucal.rules.resolve import DataAndMachine
from paucal.tasks.pretraining.assembly import make_crop_groups, timm_name
from paucal.types import height_and_width
from tasks.pretraining.short_runs import StopAfter, start

IMAGENET = DataAndMachine(1_281_167, 0, 400, device="cuda", devices=8, bf16=True)
COMMON: dict[str, tuple[Any, str]] = {
    "img_size": ([224], "2.1: global crops of 224"),
    "global_crops": (2, "1.2: 2 globals"),
    "global_scale": ([0.4, 1.0], "1.7: (0.4, 1)"),
    "local_crops": ([8], "1.7: 8 locals"),
    "local_size": ([96], "2.1: 96"),
    "local_scale": ([0.05, 0.4], "1.7: (0.05, 0.4)"),
    "pipeline": ("dino", "2.1: the default"),
    "blur": ([0.1, 2.0], "2.1: radius 0.1 to 2"),
    "normalise": ("imagenet", "2: ImageNet's mean and deviation"),
    "tasks": ("view+region", "1.8"),
    "out_dim": (65536, "1.6: 65,536"),
    "hidden_dim": (2048, "1.6: 2048"),
    "bottleneck_dim": (256, "1.6: 256"),
    "head_norm": ("none", "1.7: no BN in head"),
    "learn_lengths": (True, "1.7: norm_last_layer False"),
    "freeze_last_layer": (1, "1.6: 1"),
    "teacher_temperature": (0.07, "1.7: 0.07"),
    "warmup_teacher_temperature": (0.04, "1.7: 0.04"),
    "warmup_teacher_epochs": (30, "1.7: 30 epochs"),
    "momentum": (0.996, "1.7: 0.996"),
    "epochs": (300, "1.7: 300"),
    "batch_size": (32, "1.7: 512 images on 16 GPUs"),
    "warmup_epochs": (10.0, "1.7: 10"),
    "min_lr": (1e-6, "1.7: 1e-6"),
    "weight_decay": (0.04, "1.7: 0.04"),
    "weight_decay_end": (0.4, "1.7: 0.4"),
    "clip": (3.0, "1.7: 3.0"),
    "drop_path": (0.1, "1.1 and 3.1: 0.1 for Swin-T, CvT and ViL"),
}
LARGER = {"drop_path": (0.2, "3.1: 0.2 for Swin-S and Swin-B")}
SWIN = "esvit_swin_{}_patch4_window{}_224"


def joins(epoch: int) -> dict[str, tuple[Any, str]]:
    return {"region_after": (epoch, "6, README's tables: start of the region task")}


def of(model: str) -> dict[str, tuple[Any, str]]:
    return {"model": (model, "6, README's tables")}


VIEW = {"tasks": ("view", "6, table 3: view task only")}
LARGE_STEP = {"batch_size": (64, "6, README's tables, and table 3: 1024 images, here on 16 GPUs")}

TABLES: dict[str, dict[str, tuple[Any, str]]] = {
    "esvit-swin-tiny": of(SWIN.format("tiny", 7)),
    "esvit-swin-tiny-1024": of(SWIN.format("tiny", 7)) | VIEW | LARGE_STEP,
    "esvit-swin-small": of(SWIN.format("small", 7)) | LARGER,
    "esvit-swin-base": of(SWIN.format("base", 7)) | LARGER | joins(200),
    "esvit-swin-tiny-w14": of(SWIN.format("tiny", 14)) | joins(200),
    "esvit-swin-small-w14": of(SWIN.format("small", 14))
    | LARGER
    | joins(180)
    | {"batch_size": (16, "6: 2 nodes x 16 x 16")},
    "esvit-swin-base-w14": of(SWIN.format("base", 14))
    | LARGER
    | joins(200)
    | {"learn_lengths": (False, "6: norm_last_layer true"), "batch_size": (8, "6: 4 nodes x 16 x 8")},
    "esvit-deit-small": of("esvit_deit_small_patch16_224") | VIEW | LARGE_STEP,
    "esvit-vil-tiny": of("esvit_vil_tiny") | joins(200) | LARGE_STEP,
    "esvit-cvt-tiny": of("esvit_cvt_tiny") | joins(200) | LARGE_STEP,
    "esvit-resnet50": of("resnet50") | joins(200) | LARGE_STEP | {"drop_path": (0.0, "1.1: none is named")},
}


def chosen(**given: Any) -> PretrainSettings:
    settings, _ = with_recipe(PretrainSettings(**given), dict.fromkeys(given, "flag"))
    return resolve(settings, IMAGENET)[0]


def test_tables__are_of_all_recipes_but_our_own():
    assert set(RECIPES) - set(TABLES) == {"esvit-small-batch"}


@pytest.mark.parametrize("name", TABLES)
def test_recipe__has_the_published_values_and_no_others(name):
    table, stored = COMMON | TABLES[name], RECIPES[name].settings
    wrong = {
        key: f"{stored.get(key)!r}, but {source}" for key, (value, source) in table.items() if stored.get(key) != value
    }
    assert not wrong
    assert set(stored) == set(table)
    assert RECIPES[name].lr_per_512 == 1e-3  # 1.7: 5e-4 for 256


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("swin_tiny_patch4_window7_224", 0.1),  # 3.1
        ("esvit_swin_small_patch4_window14_224", 0.2),
        ("esvit_cvt_tiny", 0.1),  # 1.1
        ("esvit_vil_tiny", 0.1),
        ("deit_small_patch16_224", 0.1),  # 1.1: DeiT 0.1
        ("deit_tiny_patch16_224", 0.1),
        ("esvit_deit_small_patch16_224", 0.1),
        ("vit_base_patch16_224", 0.1),  # what timm calls DeiT's sizes
        ("resnet50", 0.0),
        ("vit_mini", 0.0),
    ],
)
def test_drop_path__is_the_published_one_of_the_backbone(model, rate):
    assert chosen(model=model).drop_path == rate
    assert chosen(recipe="esvit-swin-base", model=model).drop_path == rate


@pytest.mark.parametrize("recipe", [None, "esvit-swin-tiny"])
def test_deit_pipeline__has_timms_areas_for_all_crops(recipe):
    settings = chosen(recipe=recipe, pipeline="deit")
    assert [group.scale for group in make_crop_groups(settings, height_and_width(settings.img_size or ()))] == [
        (0.08, 1.0)
    ] * 2  # 2.2: globals and locals
    small, _ = resolve(PretrainSettings(pipeline="deit"), DataAndMachine(9000, 0, 32, device="cpu"))
    assert (small.global_scale, small.local_scale) == ([0.08, 1.0], [0.08, 1.0])
    asked = chosen(recipe=recipe, pipeline="deit", local_scale=[0.1, 0.3])
    assert (asked.global_scale, asked.local_scale) == ([0.08, 1.0], [0.1, 0.3])
    assert [group.scale for group in make_crop_groups(chosen(recipe=recipe), (224, 224))] == [(0.4, 1.0), (0.05, 0.4)]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (0.04, 0.4),
        (0.04, 0.0),
        pytest.param(0.4, 0.04, marks=pytest.mark.slow),
        pytest.param(0.0, 0.0, marks=pytest.mark.slow),
    ],
)
def test_weight_decay__goes_from_one_value_to_the_other_also_where_the_end_is_nothing(begin, end, pictures, tmp_path):
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            seen.append({group["weight_decay"] for group in trainer.optimizers[0].param_groups if group["decayed"]})

    start(pictures, tmp_path / "run", [Look(), StopAfter(3)], weight_decay=begin, weight_decay_end=end, epochs=1)
    values = [value for (value,) in seen]
    assert values[0] == pytest.approx(begin)
    assert (values[1] - begin) * (end - begin) > 0 or begin == end
    assert all(min(begin, end) - 1e-9 <= value <= max(begin, end) + 1e-9 for value in values)


@pytest.mark.parametrize(("sides", "size"), [((20, 40), 32), ((41, 48, 64, 65, 80), 64)])
def test_model__is_one_for_all_images_that_are_brought_to_one_size(sides, size):
    for side in sides:
        settings, _ = resolve(PretrainSettings(), DataAndMachine(9000, 0, side, device="cpu"))
        assert (settings.model, settings.img_size) == ("vit_mini", [size])


def test_timm_name__is_that_of_a_swin_which_timm_has():
    assert timm_name("esvit_swin_tiny_patch4_window7_224") == "swin_tiny_patch4_window7_224"
    assert timm_name("esvit_cvt_tiny") == "esvit_cvt_tiny"


def test_preset__of_the_program_decays_tables_beside_any_recipe():
    """1.7: "Everything >= 2-D is decayed: relative-position tables, ..."."""
    for given in ({}, {"recipe": "esvit-swin-tiny"}):
        assert not _loss_options(chosen(**given)).decays_tables
        assert _loss_options(chosen(**given, esvit_preset="reference")).decays_tables
