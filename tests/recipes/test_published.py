"""Named recipes, and what wins over what."""

from dataclasses import fields

import pytest

from paucal.methods.training import check_used, with_recipe
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.recipes.table import RECIPES
from paucal.rules.resolve import DataAndMachine
from paucal.settings.options import check_ranges
from paucal.types import UserError

FACTS = DataAndMachine(n_train=50000, n_classes=10, median_side=32, cores=2)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe__names_settings_that_exist_and_are_in_range(name):
    recipe = RECIPES[name]
    assert set(recipe.settings) <= {field.name for field in fields(TrainSettings)}
    settings, origin = with_recipe(TrainSettings(recipe=name), {"recipe": "flag"})
    check_ranges(settings)
    assert all(origin[key] == f"recipe {name}" for key in recipe.settings)
    assert all(getattr(settings, key) == value for key, value in recipe.settings.items())
    assert all([recipe.summary, recipe.source, recipe.cost, recipe.expected])


def test_recipe__of_a_papers_table_trains_on_all_training_images():
    """None of the papers keeps images for validation; what is not to meet a table leaves the choice to the user."""
    without = {name for name, recipe in RECIPES.items() if recipe.settings.get("val_fraction") == 0}
    assert set(RECIPES) - without == {"dhvt", "small-images"}


def test_recipe__wins_over_the_data_and_gives_way_to_what_is_given():
    given = {"recipe": "flag", "epochs": "flag", "mixup": "config"}
    settings, origin = with_recipe(TrainSettings(recipe="drloc-scratch", epochs=7, mixup=0.0), given)
    assert (settings.epochs, settings.mixup, settings.cutmix) == (7, 0.0, 1.0)
    assert (origin["epochs"], origin["mixup"], origin["cutmix"]) == ("flag", "config", "recipe drloc-scratch")
    resolved, _ = resolve(settings, FACTS)
    assert (resolved.model, resolved.img_size, resolved.drop_path) == ("swin_tiny_patch4_window7_224", [224], 0.2)


@pytest.mark.parametrize(
    ("recipe", "accumulate", "rate"),
    # 1e-3 from scratch and 5e-4 for fine-tuning at the paper's 1,024 images, in proportion to the batch.
    [("drloc-scratch", 8, 1e-3), ("drloc-scratch", 1, 1.25e-4), ("drloc-finetune", 8, 5e-4)],
)
def test_rate__is_the_papers_at_the_papers_batch(recipe, accumulate, rate):
    settings, _ = with_recipe(TrainSettings(recipe=recipe, accumulate=accumulate, init=None), {"accumulate": "flag"})
    resolved, reasons = resolve(settings, FACTS)
    assert resolved.lr == pytest.approx(rate)
    assert resolved.min_lr == pytest.approx(rate / 100)
    assert recipe in reasons["lr"]


def test_reference__is_the_first_third_of_a_longer_cosine():
    settings, _ = with_recipe(TrainSettings(recipe="drloc-scratch-reference"), {})
    assert (settings.epochs, settings.schedule_epochs, settings.drloc_preset) == (100, 300, "reference")


@pytest.mark.parametrize(
    ("given", "schedule", "warmup"),
    [
        ({}, 100, 20.0),
        ({"epochs": 100}, 100, 20.0),
        ({"epochs": 300}, 300, 20.0),  # the cosine ends with the run, and the warm-up stays
        ({"epochs": 10}, 10, 2.0),
        ({"epochs": 10, "warmup_epochs": 5.0, "schedule_epochs": 40}, 40, 5.0),  # what is given is kept
        ({"epochs": 0}, None, 0.0),
    ],
)
def test_length__of_a_recipe_follows_epochs_that_are_given(given, schedule, warmup):
    asked = TrainSettings(recipe="drloc-scratch", init=None, **given)
    settings, origin = with_recipe(asked, dict.fromkeys(given, "flag"))
    resolved, reasons = resolve(settings, FACTS)
    assert (resolved.schedule_epochs, resolved.warmup_epochs) == (schedule, warmup)
    if given == {"epochs": 10}:
        assert origin["warmup_epochs"] == "recipe drloc-scratch: its share of 10 epochs"
        assert reasons["schedule_epochs"] == "the cosine ends with the run"


def test_supervised__takes_the_recipe_without_its_extra_loss():
    given = {"recipe": "flag", "method": "flag"}
    settings, origin = with_recipe(TrainSettings(recipe="drloc-scratch", method="supervised"), given)
    assert settings.method == "supervised"
    assert "drloc_preset" not in origin


def test_unknown__names_the_nearest():
    with pytest.raises(UserError, match=r"'drloc-scrach' is unknown.*did you mean 'drloc-scratch'"):
        with_recipe(TrainSettings(recipe="drloc-scrach"), {})


def test_recipe__leaves_out_what_another_method_has_no_use_for():
    given = {"recipe": "flag", "method": "flag"}
    settings, origin = with_recipe(TrainSettings(recipe="token-labeling-reference", method="supervised"), given)
    assert "token_preset" not in origin
    check_used(settings, origin)
    same, kept = with_recipe(TrainSettings(recipe="token-labeling-reference", method="relabel"), given)
    assert (same.token_preset, kept["token_preset"]) == ("reference", "recipe token-labeling-reference")


@pytest.mark.parametrize("setting", [{"token_preset": "paper"}, {"drloc_preset": "paper"}, {"token_weight": 0.5}])
def test_settings__of_another_method_are_refused_where_they_were_typed(setting):
    settings = TrainSettings(method="supervised", **setting)
    with pytest.raises(UserError, match="has no effect with --method supervised"):
        check_used(settings, dict.fromkeys(setting, "flag"))
    if setting != {"token_weight": 0.5}:
        check_used(settings, dict.fromkeys(setting, "config"))  # the default, repeated by a stored config
        return
    with pytest.raises(UserError, match="has no effect"):
        check_used(settings, dict.fromkeys(setting, "config"))
