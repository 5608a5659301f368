"""Swin's and T2T-ViT's own schedules on ImageNet-1K, down to the rate of an epoch, and that DrLoc can join them."""

import pytest

from paucal.data.views.normalisation import Normalisation
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training import with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.rules.resolve import DataAndMachine
from paucal.tasks.classification.trainer_inputs import make_optimization, make_preprocessing, training_plan

IMAGENET = DataAndMachine(n_train=1_281_167, n_classes=1000, median_side=400, cores=8)


def chosen(recipe: str, **given) -> TrainSettings:
    settings, _ = with_recipe(TrainSettings(recipe=recipe, **given), dict.fromkeys(["recipe", *given], "flag"))
    return resolve(settings, IMAGENET)[0]


@pytest.mark.parametrize(
    ("recipe", "images", "rates"),
    [
        # Section 3.2 of DrLoc's fact sheet, the column of 300 epochs; the last epoch ends at the floor.
        ("swin-imagenet", 1024, {0: 1e-6, 1: 5.095e-5, 10: 5.005e-4, 20: 9.892e-4, 100: 7.525e-4, 300: 1e-5}),
        # 5e-4 for 512 images, from 1e-6 in ten epochs, to 1e-5 after 300 and there for ten more.
        ("t2t-imagenet", 512, {0: 1e-6, 5: 2.505e-4, 10: 4.98658e-4, 150: 2.55e-4, 300: 1e-5, 305: 1e-5, 310: 1e-5}),
    ],
)
def test_rate__of_each_epoch_is_the_programs(recipe, images, rates):
    settings = chosen(recipe, accumulate=8, device="cpu")
    assert settings.batch_size_or_1 * settings.accumulate == images
    plan = training_plan(settings, IMAGENET.n_train, IMAGENET.n_classes)
    schedule = make_optimization(settings, plan).schedule
    found = {epoch: schedule(epoch * plan.steps_per_epoch) for epoch in rates}
    assert found == pytest.approx(rates, rel=2e-4)


@pytest.mark.parametrize(("recipe", "epochs", "ratio"), [("swin-imagenet", 300, 0.875), ("t2t-imagenet", 310, 0.9)])
def test_program__tests_with_its_own_crop(recipe, epochs, ratio):
    settings = chosen(recipe)
    assert settings.epochs == epochs
    assert make_preprocessing(settings, Normalisation()).crop_ratio == ratio


@pytest.mark.parametrize(("recipe", "weight"), [("swin-imagenet", 0.5), ("t2t-imagenet", 0.1)])
def test_drloc__joins_and_changes_nothing_else(recipe, weight):
    alone, joined = vars(chosen(recipe)), vars(chosen(recipe, method="drloc"))
    assert {name for name in alone if alone[name] != joined[name] and not name.startswith("drloc")} == {"method"}
    assert (joined["drloc_weight"], joined["drloc_pairs"], joined["drloc_hidden"]) == (weight, 64, 512)
