"""The papers' segmentation of ADE20K: what the recipes resolve to."""

from dataclasses import fields

import pytest

from paucal.recipes.segmentation import RECIPES, SCALES
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo, resolve
from paucal.runner.trainer_plan import with_synced_norms
from paucal.tasks.segmentation.assembly import crop_options, fast_inference_options, final_inference_options
from paucal.tasks.segmentation.job import SegmentationJob
from paucal.tasks.segmentation.model import HeadOptions
from paucal.tasks.segmentation.rules import RULES
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError
from tasks.segmentation.test_segment_card import card
from tasks.segmentation.test_segment_objective import build_objective

IMAGES, STEPS = 20_210, 160_000
ADE20K = DataAndMachine(
    IMAGES, 150, 512, device="cuda", devices=8, bf16=True, initial_weights=InitialWeightsInfo("w.pth", None)
)


def resolved(name: str, **given) -> SegmentSettings:
    given = {"data": "ade/", "init": "weights.pth", "recipe": name, **given}
    settings, _ = SegmentationJob().check(SegmentSettings(**given), dict.fromkeys(given, "flag"))
    return resolve(settings, ADE20K, RULES)[0]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes__resolve_to_the_published_numbers(name: str):
    assert set(RECIPES[name].settings) <= {field.name for field in fields(SegmentSettings)}
    settings = resolved(name)
    assert {key: getattr(settings, key) for key in RECIPES[name].settings} == dict(RECIPES[name].settings)
    assert settings.ignore == [0]  # "not labelled" is no class
    per_epoch = IMAGES / settings.effective_batch
    assert settings.effective_batch == 16
    assert round(settings.epochs * per_epoch, -3) == STEPS
    assert round(settings.warmup_epochs * per_epoch, -2) == 1500
    assert (settings.lr, settings.weight_decay, settings.schedule, settings.sync_bn) == (6e-5, 0.01, "linear", True)
    crops = crop_options(settings)
    assert (crops.size, crops.resize_to, crops.scale) == ((512, 512), (512, 2048), (0.5, 2.0))
    assert (crops.colour, crops.hflip, crops.max_class_fraction) == ("photometric", 0.5, 0.75)


def test_swin__is_tested_on_whole_images_of_six_sizes_and_mirrored():
    settings = resolved("upernet-ade20k")
    assert (settings.model, settings.drop_path) == ("padded_swin_tiny_patch4_window7_224", 0.2)
    assert (settings.width, settings.auxiliary_width) == (512, 256)
    look = final_inference_options(settings)
    assert (look.whole, look.resize_to, look.scales, look.mirror) == (True, (512, 2048), tuple(SCALES), True)
    once = fast_inference_options(settings)
    assert (once.whole, once.resize_to, once.scales, once.mirror) == (True, (512, 2048), (1.0,), False)


@pytest.mark.parametrize(
    ("model", "widths"), [("lvvit_s", (256, 256)), ("lvvit_m", (256, 256)), ("lvvit_l", (512, 512))]
)
def test_lvvit__is_tested_in_windows_and_has_heads_of_its_own_widths(model: str, widths: tuple[int, int]):
    settings = resolved("upernet-ade20k-lvvit", model=model)
    assert (settings.width, settings.auxiliary_width) == widths
    look = final_inference_options(settings)
    assert (look.whole, look.size, look.resize_to, look.mirror) == (False, (512, 512), (512, 2048), False)
    assert round(512 * (1 - look.overlap)) == 341  # the published stride


def test_auxiliary_heads__have_the_width_that_is_asked_for():
    auxiliary = build_objective(auxiliary_width=12).auxiliary
    assert auxiliary is not None
    assert auxiliary.layers[0][0].out_channels == 12


def test_joint_norms__need_gpus_where_there_are_several_processes():
    def norms(module) -> set[str]:
        return {type(part).__name__ for part in module.modules() if "BatchNorm" in type(part).__name__}

    network = card(head=HeadOptions(8, 0.1)).build()
    alone = with_synced_norms(SegmentSettings(sync_bn=True, devices=1, device="cpu"), network)
    assert "SyncBatchNorm" not in norms(alone)
    joint = with_synced_norms(
        SegmentSettings(sync_bn=True, devices=2, device="cuda"), card(head=HeadOptions(8, 0.1)).build()
    )
    assert norms(joint.head) == {"SyncBatchNorm"}
    assert joint.state_dict().keys() == network.state_dict().keys()
    with pytest.raises(UserError, match="only on GPUs, but --device is cpu"):
        with_synced_norms(SegmentSettings(sync_bn=True, devices=2, device="cpu"), network)


def test_a_time_instead_of_a_recipes_epochs__keeps_the_given_warm_up():
    given = {"recipe": "upernet-ade20k", "init": "timm", "time": "1h", "warmup_epochs": 2.0}
    settings, _ = SegmentationJob().check(SegmentSettings(**given), dict.fromkeys(given, "flag"))
    assert (settings.epochs, settings.warmup_epochs) == (None, 2.0)
