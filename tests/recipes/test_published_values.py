"""Every value of every published recipe against the figure it is from.

The figures are those of the papers, their supplements and their programs, as the fact sheets number them: D is DrLoc's
(section 3.1), H DHVT's (section 3), L LV-ViT's (sections 1.1 and 4), B that of backbones (section 3.1). A value that a
sheet does not have says so.
"""

from typing import Any

import pytest

from paucal.methods.training import resolve_training as resolve
from paucal.methods.training import with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.recipes.table import RECIPES
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo

Table = dict[str, tuple[Any, str]]
IMAGENET = DataAndMachine(n_train=1_281_167, n_classes=1000, median_side=400, cores=8)
RAND = "rand-m9-mstd0.5-inc1"

AUGMENTED: Table = {
    "label_smoothing": (0.1, "D, H, L: 0.1"),
    "hflip": (0.5, "D, H, L: flip 0.5"),
    "erase": (0.25, "D, H, L: random erasing 0.25"),
}
CROPPED: Table = {
    "img_size": ([224], "D, H, L: 224 pixels"),
    "crop": ("random-resized", "D, L: random resized crop; H: above 32 pixels"),
    "crop_scale": (0.08, "D, L: scale 0.08 to 1; H: timm's"),
}
IMAGENET_MOMENTS: Table = {"normalise": ("imagenet", "D, H, L: ImageNet's mean and deviation for every set")}
WHOLE: Table = {"val_fraction": (0.0, "D, H, L: all training images train, and the last epoch is judged")}
MIXED: Table = {"mixup": (0.8, "D, H: alpha 0.8"), "cutmix": (1.0, "D, H: alpha 1.0")}

DRLOC: Table = {
    **AUGMENTED,
    **CROPPED,
    **MIXED,
    "model": ("swin_tiny_patch4_window7_224", "D 2.3: Swin-T"),
    "method": ("drloc", "D 1.1"),
    "drloc_preset": ("paper", "D 1.7: the default is the paper"),
    "epochs": (100, "D: 100 epochs"),
    "schedule_epochs": (100, "D 3.2: what the paper's text implies"),
    "batch_size": (128, "D: 8 GPUs x 128"),
    "warmup_epochs": (20.0, "D: 20 epochs from scratch"),
    "weight_decay": (0.05, "D: 0.05"),
    "clip": (5.0, "D: global norm 5.0"),
    "average": (0.0, "D: no EMA"),
    "rand_augment": (RAND, "D: timm's string"),
}
DRLOC_TUNED: Table = {
    **DRLOC,
    "init": ("timm", "D, remarks: official weights of ImageNet-1K"),
    "warmup_epochs": (10.0, "D: 10 epochs in fine-tuning"),
}
DRLOC_REFERENCE: Table = {"drloc_preset": ("reference", "D 1.6"), "schedule_epochs": (300, "D 3.2: built for 300")}
SWIN: Table = {
    **{name: row for name, row in DRLOC.items() if name != "drloc_preset"},
    "method": ("supervised", "D 4, table 7: the baseline; its authors have no DrLoc"),
    "epochs": (300, "D: 300, also for IN-1K"),
    "schedule_epochs": (300, "D 3.2: the program it was made from has a cosine of 300"),
    "drop_path": (0.2, "D 2.3: config value 0.2"),
}
T2T: Table = {
    **SWIN,
    "model": ("t2t_vit_14", "D 2.5"),
    "epochs": (310, "D 2.5: 310 incl. 10 cooldown"),
    "schedule_epochs": (300, "B: 300 + 10 cooldown"),
    "batch_size": (64, "B: batch 512 on 8 GPUs"),
    "warmup_epochs": (10.0, "D 2.5: 10"),
    "warmup_lr": (1e-6, "B: warm-up from 1e-6"),
    "min_lr": (1e-5, "D 2.5: 1e-5"),
    "clip": (0.0, "the program's default: none; no sheet has it"),
    "average": (0.99996, "D 2.5: EMA 0.99996"),
    "drop_path": (0.1, "D 2.5: 0.1"),
}

DHVT: Table = {
    **AUGMENTED,
    **MIXED,
    "method": ("supervised", "H: cross-entropy on mixed labels"),
    "epochs": (300, "H: 300"),
    "schedule_epochs": (300, "H: cosine of all epochs"),
    "warmup_lr": (1e-6, "H: warm-up start 1e-6"),
    "min_lr": (1e-5, "H: 1e-5"),
    "weight_decay": (0.05, "H: 0.05"),
    "clip": (0.0, "H: no gradient clipping"),
    "average": (0.0, "H: an EMA that is never evaluated"),
    "drop_path": (0.1, "H: 0.1"),
    "repeats": (3, "H 3: 3 times, as DeiT, whose augmentation the supplement names (4.1)"),
}
DHVT_PLAIN: Table = {**DHVT, **IMAGENET_MOMENTS, "warmup_epochs": (5.0, "H: 5 on CIFAR")}
RANDOMISED: Table = {"rand_augment": (RAND, "H 2, row 22, and 3: the program's, as DeiT")}
DHVT_CIFAR: Table = {
    **DHVT_PLAIN,
    **RANDOMISED,
    "model": ("dhvt_tiny_cifar_patch4", "H, table 11"),
    "img_size": ([32], "H: 32"),
    "crop": ("padded", "H: random crop 32 with padding 4"),
    "batch_size": (256, "H: 256 on each of 2 GPUs"),
}
DHVT_LARGE: Table = {**DHVT, **RANDOMISED, **CROPPED, "batch_size": (128, "H: 128 on each of 2 GPUs")}
DHVT_DOMAINNET: Table = {
    **DHVT_LARGE,
    **IMAGENET_MOMENTS,
    "model": ("dhvt_tiny_domain_patch16", "H, table 11"),
    "warmup_epochs": (20.0, "H: 20"),
}
DHVT_IMAGENET: Table = {
    **DHVT_LARGE,
    **IMAGENET_MOMENTS,
    "model": ("dhvt_tiny_imagenet_patch16", "H, table 11"),
    "warmup_epochs": (10.0, "H: 10"),
}
DHVT_TUNED: Table = {
    **DHVT_LARGE,
    "model": ("dhvt_tiny_imagenet_patch16", "H 2, row 24: ImageNet's variants are tuned"),
    "epochs": (100, "H: 100"),
    "schedule_epochs": (100, "H: cosine of all epochs"),
    "warmup_epochs": (2.0, "H: 2"),
    "min_lr": (1e-6, "H: 1e-6"),
    "weight_decay": (1e-8, "H: 1e-8"),
    "repeats": (1, "H: repeated augmentation is off in fine-tuning"),
}
DHVT_PROGRAM: Table = {"schedule": ("lagging", "H: the curve lags one epoch")}

LVVIT: Table = {
    **AUGMENTED,
    **CROPPED,
    **IMAGENET_MOMENTS,
    "model": ("lvvit_s", "L 7.1"),
    "method": ("token-labeling", "L 2"),
    "epochs": (310, "L: 300 and 10 of cooldown"),
    "schedule_epochs": (300, "L: 300"),
    "batch_size": (128, "L: 8 x 128"),
    "warmup_epochs": (5.0, "L: 5"),
    "warmup_lr": (1e-6, "L: warm-up from 1e-6"),
    "min_lr": (1e-5, "L: floor 1e-5"),
    "weight_decay": (0.05, "L: 0.05"),
    "clip": (0.0, "L: no gradient clipping"),
    "average": (0.99992, "L: EMA 0.99992"),
    "drop_path": (0.1, "L 1.1: 0.1 for S; supplement table 1"),
    "rand_augment": (RAND, "L: m9 mstd0.5, n 2"),
    "mixup": (0.0, "L, supplement table 1: none"),
    "cutmix": (0.0, "L, supplement table 1: none"),
}
LVVIT_TUNED: Table = {
    **{name: row for name, row in LVVIT.items() if name != "normalise"},
    "img_size": ([384], "L 4.2: 224 to 384"),
    "epochs": (30, "L 4.2: 30 epochs"),
    "schedule_epochs": (30, "L 4.2: 30 epochs"),
    "batch_size": (64, "L 4.2: 8 x 64"),
    "lr": (5e-6, "L 4.2: 5e-6"),
    "min_lr": (5e-6, "L 4.2: floor 5e-6"),
    "weight_decay": (1e-8, "L 4.2: 1e-8"),
}
CAIT: Table = {
    "model": ("cait_s36_384", "L 7.6: 36 blocks, width 384"),
    "method": ("supervised", "L 7.6: labels, beside distillation"),
    "add": (["distillation"], "L 7.6: distillation, yes"),
    "teacher": ("regnety_160.deit_in1k", "DeiT, section 5: RegNetY-16GF; no sheet has it"),
    "drop_path": (0.2, "L 7.6: 0.2, fixed"),
    "mixup": (0.8, "L 7.6: yes; L, supplement table 1: 0.8"),
    "cutmix": (1.0, "L 7.6: yes; L 4.1, issue 6: 1.0"),
}
PLAIN: Table = {"model": ("lvvit_s_plain", "L 1.1: lvvit, S without token labels")}

PROTOCOLS: dict[str, Table] = {
    "drloc-scratch": {**DRLOC, **IMAGENET_MOMENTS},
    "drloc-scratch-reference": {**DRLOC, **IMAGENET_MOMENTS, **DRLOC_REFERENCE},
    "drloc-finetune": DRLOC_TUNED,
    "drloc-finetune-reference": {**DRLOC_TUNED, "drloc_preset": ("reference", "D 1.6")},
    "swin-imagenet": {**SWIN, **IMAGENET_MOMENTS},
    "t2t-imagenet": {**T2T, **IMAGENET_MOMENTS},
    "dhvt-cifar": DHVT_CIFAR,
    "dhvt-cifar-reference": {**DHVT_CIFAR, **DHVT_PROGRAM},
    "dhvt-domainnet": DHVT_DOMAINNET,
    "dhvt-domainnet-reference": {**DHVT_DOMAINNET, **DHVT_PROGRAM},
    "dhvt-imagenet": {**DHVT_IMAGENET, "batch_size": (256, "H: the supplement's 512 on 2 GPUs")},
    "dhvt-imagenet-reference": {**DHVT_IMAGENET, **DHVT_PROGRAM},
    "dhvt-finetune": DHVT_TUNED,
    "dhvt-finetune-reference": {**DHVT_TUNED, **DHVT_PROGRAM, "eval_mode": (True, "H: stays in eval mode")},
    "token-labeling": LVVIT,
    "token-labeling-reference": {**LVVIT, "token_preset": ("reference", "L 8")},
    "token-labeling-high-resolution": LVVIT_TUNED,
    "relabel": {**LVVIT, **PLAIN, "method": ("relabel", "L 2: ReLabel")},
    "lvvit-standard": {
        **LVVIT,
        **PLAIN,
        "method": ("supervised", "L, supplement table 1"),
        "mixup": (0.8, "L, supplement table 1: 0.8"),
    },
    "cait": {**LVVIT, **CAIT, "epochs": (400, "L 7.6: 400"), "schedule_epochs": (400, "L 7.6: 400")},
    "cait-high-resolution": {**LVVIT_TUNED, **CAIT},
}
TABLES = {"dhvt": DHVT_PLAIN} | {name: {**table, **WHOLE} for name, table in PROTOCOLS.items()}


def test_tables__are_of_all_recipes_but_our_own():
    assert set(RECIPES) - set(TABLES) == {"small-images"}


@pytest.mark.parametrize("name", TABLES)
def test_recipe__has_the_published_values_and_no_others(name):
    wrong = {
        key: f"{RECIPES[name].settings.get(key)!r}, but {source}"
        for key, (value, source) in TABLES[name].items()
        if RECIPES[name].settings.get(key) != value
    }
    assert not wrong
    assert set(RECIPES[name].settings) == set(TABLES[name])


def chosen(recipe: str, **given: Any) -> TrainSettings:
    settings, _ = with_recipe(TrainSettings(recipe=recipe, **given), dict.fromkeys(given, "flag"))
    return resolve(settings, IMAGENET)[0]


@pytest.mark.parametrize(
    ("model", "drop_path", "policy", "rate"),
    [
        ("lvvit_t", 0.1, RAND, 1.6e-3),  # L 1.1 and issue 23
        ("lvvit_s", 0.1, RAND, 1.6e-3),  # L 4.1: 1e-3 * 1024 / 640
        ("lvvit_m", 0.2, RAND, 1.6e-3),  # L 1.1: 0.2
        ("lvvit_l", 0.3, "rand-m9-n3-mstd0.5-inc1", 1e-3),  # L 1.1: 0.3; 4.1: n 3, 1e-3 at 1024
    ],
)
def test_lvvit__of_each_size_has_its_own_values(model, drop_path, policy, rate):
    for recipe in ("token-labeling", "token-labeling-reference"):
        one = chosen(recipe, model=model, accumulate=8)
        assert (one.drop_path, one.rand_augment) == (drop_path, policy)
        assert one.lr == pytest.approx(rate)
    tuned = chosen("token-labeling-high-resolution", model=model, init="runs/1")
    assert (tuned.drop_path, tuned.rand_augment, tuned.lr) == (drop_path, policy, 5e-6)  # L 4.2
    assert chosen("token-labeling", model=model, drop_path=0.4).drop_path == 0.4
    assert resolve(TrainSettings(model=model), IMAGENET)[0].drop_path == drop_path


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("swin_tiny_patch4_window7_224", 0.2),  # D: Swin 0.2
        ("esvit_swin_tiny_patch4_window7_224", 0.2),
        ("esvit_swin_base_patch4_window14_224", 0.2),
        ("cvt_13", 0.0),  # D: all others 0
        ("vit_base_patch16_224", 0.0),
        ("resnet50", 0.0),
        ("dhvt_tiny_cifar_patch4", 0.1),  # H: 0.1
    ],
)
def test_drop_path__is_that_of_the_papers_family(model, rate):
    assert resolve(TrainSettings(model=model), IMAGENET)[0].drop_path == rate
    start = InitialWeightsInfo("runs/1", model)
    tuned, _ = resolve(TrainSettings(init="runs/1"), DataAndMachine(9000, 10, 300, initial_weights=start))
    assert (tuned.model, tuned.drop_path) == (model, rate)


@pytest.mark.parametrize(("sides", "size"), [((20, 32, 40), 32), ((41, 48, 64, 65, 80), 64), ((81, 100, 120), 96)])
def test_model__is_one_for_all_images_that_are_brought_to_one_size(sides, size):
    for recipe in (None, "dhvt"):
        found = set()
        for side in sides:
            given = TrainSettings(recipe=recipe, method="supervised")
            one, _ = resolve(with_recipe(given, {"method": "flag"})[0], DataAndMachine(3000, 10, side))
            assert one.img_size == [size]
            found.add(one.model)
        assert len(found) == 1, sides
        assert ("cifar" in (one.model or "") or one.model == "dhvt_mini") == (size <= 64)
