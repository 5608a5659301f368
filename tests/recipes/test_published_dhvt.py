"""DHVT's protocols in both readings, down to the rate of each epoch."""

import pytest
import torch
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn

from paucal.methods.supervised import fine_tuning
from paucal.methods.training import build_objective, with_recipe
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Supervised
from paucal.objectives.finetuning import FineTuning
from paucal.recipes.table import RECIPES
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo, backbone_spec
from paucal.tasks.classification.trainer_inputs import (
    check_sync_bn,
    make_augmentation,
    make_optimization,
    make_preprocessing,
    remarks_on_plan,
    training_plan,
)
from paucal.training.module import parameter_groups
from paucal.types import UserError

CIFAR = DataAndMachine(n_train=50000, n_classes=100, median_side=32, cores=2)
PHOTOS = DataAndMachine(n_train=3000, n_classes=10, median_side=160, cores=2)
DHVT = [name for name in RECIPES if name.startswith("dhvt")]


def resolved(recipe: str, facts: DataAndMachine = CIFAR, **given) -> tuple[TrainSettings, dict[str, str]]:
    names = dict.fromkeys([*given, "recipe"], "flag")
    settings, _ = with_recipe(TrainSettings(recipe=recipe, **given), names)
    return resolve(settings, facts)


# Given rates times the images of a step over 512, as recorded from the program's scripts; the supplement's own figures.
@pytest.mark.parametrize(
    ("recipe", "devices", "batch", "rate"),
    [
        ("dhvt-cifar", 2, 512, 1e-3),
        ("dhvt-cifar-reference", 2, 512, 1e-3),
        ("dhvt-domainnet", 2, 256, 5e-4),
        ("dhvt-domainnet-reference", 2, 256, 5e-4),
        ("dhvt-imagenet", 2, 512, 5e-4),
        ("dhvt-imagenet-reference", 2, 256, 2.5e-4),
        ("dhvt-finetune", 2, 256, 5e-4),
        ("dhvt-finetune-reference", 2, 256, 2.5e-4),
        ("dhvt-cifar", 1, 256, 5e-4),
    ],
)
def test_rate__is_the_recorded_one(recipe, devices, batch, rate):
    settings, reasons = resolved(recipe, devices=devices)
    assert settings.batch_size_or_1 * devices == batch
    assert settings.lr == pytest.approx(rate)
    assert recipe in reasons["lr"]


# What `optimizer.param_groups[0]["lr"]` is in each epoch of the program: timm's scheduler, stepped with the number of
# the epoch that has ended.
@pytest.mark.parametrize(
    ("recipe", "warmup", "floor"), [("dhvt-cifar-reference", 5, 1e-5), ("dhvt-finetune-reference", 2, 1e-6)]
)
def test_schedule__lags_one_epoch_in_the_programs_reading(recipe, warmup, floor):
    settings, _ = resolved(recipe, devices=2, device="cpu", strategy="ddp")
    plan = training_plan(settings, CIFAR.n_train, CIFAR.n_classes)
    schedule = make_optimization(settings, plan).schedule
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=settings.lr)
    theirs = CosineLRScheduler(optimizer, t_initial=settings.epochs, lr_min=floor, warmup_t=warmup, warmup_lr_init=1e-6)
    for epoch in range(settings.epochs):
        rate = optimizer.param_groups[0]["lr"]
        for step in (0, 1, plan.steps_per_epoch - 1):
            assert schedule(epoch * plan.steps_per_epoch + step) == pytest.approx(rate, rel=1e-9)
        theirs.step(epoch)
    assert schedule(0) == schedule(2 * plan.steps_per_epoch - 1) == pytest.approx(1e-6)
    assert schedule(settings.epochs * plan.steps_per_epoch - 1) > floor


def test_schedule__of_the_papers_reading_moves_every_step():
    settings, _ = resolved("dhvt-cifar", devices=2, device="cpu", strategy="ddp")
    plan = training_plan(settings, CIFAR.n_train, CIFAR.n_classes)
    schedule, steps = make_optimization(settings, plan).schedule, plan.steps_per_epoch
    assert [schedule(epoch * steps) for epoch in (0, 5, 300)] == pytest.approx([1e-6, 9.993e-4, 1e-5], rel=1e-4)
    assert schedule(1) > schedule(0)


@pytest.mark.parametrize("protocol", ["cifar", "domainnet", "imagenet", "finetune"])
def test_readings__share_the_augmentation_and_differ_in_the_schedule(protocol):
    paper, reference = RECIPES[f"dhvt-{protocol}"].settings, RECIPES[f"dhvt-{protocol}-reference"].settings
    for reading in (paper, reference):
        assert reading["rand_augment"] == "rand-m9-mstd0.5-inc1"  # DHVT's sheet, section 3: the program's default
        assert reading["repeats"] == (1 if protocol == "finetune" else 3)  # the same: off in fine-tuning
    assert "schedule" not in paper
    assert reference["schedule"] == "lagging"
    assert reference.get("eval_mode", False) == (protocol == "finetune")
    differing = {name for name in reference if reference[name] != paper.get(name)}
    # The sheet, section 3: 256 images per step; eval mode.
    own = {"imagenet": {"batch_size"}, "finetune": {"eval_mode"}}
    assert differing == {"schedule", *own.get(protocol, ())}


def test_dhvt__leaves_images_under_32_pixels_readable():
    assert resolved("dhvt", img_size=[28])[0].rand_augment == "none"


def test_images__of_32_pixels_are_padded_and_shown_whole():
    settings, _ = resolved("dhvt-cifar")
    change, size = make_augmentation(settings), make_preprocessing(settings, _statistics())
    assert (change.crop, change.padding, change.hflip, change.erase_prob) == ("padded", 4, 0.5, 0.25)
    assert (size.image_size, size.crop_ratio) == ((32, 32), 1.0)
    assert settings.normalise == "imagenet"
    large, _ = resolved("dhvt-domainnet", PHOTOS)
    assert make_preprocessing(large, _statistics()).crop_ratio == 224 / 256
    assert make_augmentation(large).crop == "random-resized"


def _statistics():
    from paucal.data.views.normalisation import Normalisation

    return Normalisation()


@pytest.mark.parametrize(
    ("facts", "given", "model", "size", "crop"),
    [
        (CIFAR, {}, "dhvt_tiny_cifar_patch4", [32], "padded"),
        (PHOTOS, {}, "dhvt_tiny_domain_patch16", [224], "random-resized"),
        (PHOTOS, {"img_size": [64]}, "dhvt_tiny_cifar_patch4", [64], "padded"),
        (
            DataAndMachine(n_train=10**6, n_classes=1000, median_side=400),
            {},
            "dhvt_tiny_imagenet_patch16",
            [224],
            "random-resized",
        ),
        (PHOTOS, {"model": "dhvt_small_imagenet_patch16"}, "dhvt_small_imagenet_patch16", [224], "random-resized"),
    ],
)
def test_dhvt__takes_the_variant_that_fits_the_images(facts, given, model, size, crop):
    settings, reasons = resolved("dhvt", facts, **given)
    assert (settings.model, settings.img_size, settings.crop) == (model, size, crop)
    assert ("model" in given) or "pixels" in reasons["model"]
    assert backbone_spec(settings, facts.n_classes)[0].name == model


def test_dhvt__is_the_papers_reading_at_32_pixels():
    plain, _ = resolved("dhvt", batch_size=256)
    paper, _ = resolved("dhvt-cifar")
    differing = {name for name, value in vars(plain).items() if value != getattr(paper, name)}
    assert differing == {"recipe", "val_fraction"}  # only the paper's table asks for all images


def test_finetuning__of_the_program_stays_in_evaluation_mode():
    start = InitialWeightsInfo("runs/1", "dhvt_tiny_imagenet_patch16", (224, 224), normalise="imagenet")
    settings, _ = resolved(
        "dhvt-finetune-reference",
        DataAndMachine(n_train=9, n_classes=2, median_side=99, initial_weights=start),
        init="runs/1",
    )
    assert fine_tuning(settings) == FineTuning(eval_mode=True)
    assert settings.weight_decay == 1e-8
    assert settings.epochs == 100


def test_evaluation_mode__from_nothing_is_refused():
    with pytest.raises(UserError, match=r"--eval-mode keeps the running statis.*give --init, or remove --eval-mode"):
        fine_tuning(TrainSettings(eval_mode=True))


@pytest.mark.parametrize("name", ["dhvt_tiny_cifar_patch4", "dhvt_tiny_domain_patch16"])
def test_weight_decay__leaves_affine_scales_and_positions_of_heads_alone(name):
    settings = TrainSettings(model=name, method="supervised", img_size=[32], model_args=["embed_dim=32", "depth=2"])
    objective = build_objective(settings, backbone_spec(settings, 10)[0])
    decayed = {n for group in parameter_groups(objective) if group["decayed"] for n in group["names"]}
    everything = {n for n, _ in objective.named_parameters()}
    spared = {n for n in everything if n.endswith(("affine.alpha", "affine.beta", "pos_embed", "cls_token"))}
    assert {"backbone.model.patch_embed.pre_affine.alpha", "backbone.model.blocks.1.attn.pos_embed"} <= spared
    assert not spared & decayed
    assert "backbone.model.blocks.1.attn.ht_proj.weight" in decayed


def sync(**changes) -> TrainSettings:
    arguments = ["embed_dim=32", "depth=2"]
    base = {"model": "dhvt_tiny_cifar_patch4", "method": "supervised", "img_size": [32], "model_args": arguments}
    return TrainSettings(**{**base, "sync_bn": True, **changes})


def test_sync_bn__joins_every_batch_norm_and_keeps_the_names_of_weights():
    built = {}
    for devices in (1, 2):
        settings = sync(devices=devices, device="cuda")
        torch.manual_seed(0)
        built[devices] = build_objective(settings, backbone_spec(settings, 10)[0])
    alone, joint = (
        [type(m).__name__ for m in objective.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for objective in built.values()
    )
    assert (set(alone), set(joint), len(alone)) == ({"BatchNorm2d"}, {"SyncBatchNorm"}, len(joint))
    states = [objective.state_dict() for objective in built.values()]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_sync_bn__keeps_activations_that_timm_puts_into_norms():
    settings = sync(devices=2, device="cuda", model="test_efficientnet", model_args=None, img_size=[64])
    plain = build_objective(
        sync(model="test_efficientnet", model_args=None, img_size=[64]), backbone_spec(settings, 3)[0]
    )
    joint = build_objective(settings, backbone_spec(settings, 3)[0])
    assert isinstance(joint, Supervised)
    joint.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 64)
    outputs = [objective.deployable().eval()(images) for objective in (plain, joint)]
    torch.testing.assert_close(outputs[0], outputs[1])


def test_sync_bn__is_refused_without_gpus_and_remarked_on_one_device():
    with pytest.raises(UserError, match=r"--sync-bn: torch.*only on GPUs, but --device is cpu"):
        check_sync_bn(sync(device="cpu", devices=2))
    with pytest.raises(UserError, match=r"--sync-bn: torch.*only on GPUs, but --device is cpu: remove --sync-bn"):
        check_sync_bn(sync(device="cpu", devices=1))
    settings = sync(device="cuda", devices=1, batch_size=16, epochs=5)
    assert "--sync-bn has no effect on a single device" in remarks_on_plan(settings, CIFAR.n_train)
