"""The recipes of token labeling against table 1 of its supplement and its published commands."""

import pytest
import timm

from paucal.methods.training import resolve_training as resolve
from paucal.methods.training import with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.rules.resolve import DataAndMachine
from paucal.training.schedules import CosineWarmup

IMAGENET = DataAndMachine(n_train=1_281_167, n_classes=1000, median_side=400, cores=8)


def settings(recipe: str, **given) -> TrainSettings:
    chosen, _ = with_recipe(TrainSettings(recipe=recipe, **given), dict.fromkeys(given, "flag"))
    return resolve(chosen, IMAGENET)[0]


@pytest.mark.parametrize(
    ("recipe", "accumulate", "rate"),
    # 1e-3 * batch / 640 with token labels, 1e-3 * batch / 1024 without; 128 images per step and 1024.
    [
        ("token-labeling", 8, 1.6e-3),
        ("token-labeling", 1, 2e-4),
        ("token-labeling-reference", 8, 1.6e-3),
        ("relabel", 8, 1e-3),
        ("lvvit-standard", 8, 1e-3),
        ("lvvit-standard", 1, 1.25e-4),
        ("cait", 8, 1e-3),
    ],
)
def test_rate__is_in_proportion_to_the_images_of_a_step(recipe, accumulate, rate):
    assert settings(recipe, accumulate=accumulate).lr == pytest.approx(rate)


def test_columns__differ_where_those_of_the_table_do():
    dense, relabel, standard = (settings(name) for name in ("token-labeling", "relabel", "lvvit-standard"))
    for one in (dense, relabel, standard):
        assert (one.weight_decay, one.warmup_epochs, one.drop_path, one.erase) == (0.05, 5, 0.1, 0.25)
        assert (one.rand_augment, one.average, one.label_smoothing) == ("rand-m9-mstd0.5-inc1", 0.99992, 0.1)
    assert [one.mixup for one in (dense, relabel, standard)] == [0.0, 0.0, 0.8]
    assert [one.method for one in (dense, relabel, standard)] == ["token-labeling", "relabel", "supervised"]
    assert settings("token-labeling-reference").token_preset == "reference"


def test_schedule__has_ten_more_epochs_at_the_floor():
    one = settings("token-labeling")
    assert (one.epochs, one.schedule_epochs, one.min_lr) == (310, 300, 1e-5)
    assert one.lr is not None
    assert one.schedule_epochs is not None
    cosine = CosineWarmup(one.lr, one.schedule_epochs, floor=one.min_lr)
    assert cosine(299) > one.min_lr
    assert [cosine(epoch) for epoch in (300, 305, 309)] == [one.min_lr] * 3


def test_high_resolution__is_a_short_run_at_a_constant_low_rate():
    one = settings("token-labeling-high-resolution")
    assert (one.img_size, one.epochs, one.lr, one.min_lr, one.weight_decay) == ([384], 30, 5e-6, 5e-6, 1e-8)
    assert (one.method, one.no_mix_token, one.drop_path) == ("token-labeling", False, 0.1)


def test_cait__keeps_one_rate_of_stochastic_depth_in_all_blocks():
    one = settings("cait")
    model = timm.create_model(str(one.model), img_size=32, depth=3, embed_dim=48, num_heads=4, drop_path_rate=0.2)
    assert [block.drop_path.drop_prob for block in model.blocks] == [one.drop_path] * 3  # "0.2 (fixed)"
    tuned = settings("cait-high-resolution", init="runs/1")
    assert (tuned.img_size, tuned.epochs, tuned.lr, tuned.weight_decay) == ([384], 30, 5e-6, 1e-8)
    assert (tuned.model, tuned.mixup, tuned.cutmix) == (one.model, one.mixup, one.cutmix)
