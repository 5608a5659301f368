"""How long a run is, and what is chosen for how many images."""

import pytest

from paucal.recipes.segmentation import RECIPES
from paucal.rules.resolve import UNDERTRAINED_IMAGES, DataAndMachine, InitialWeightsInfo, resolve
from paucal.settings.options import check_ranges
from paucal.tasks.segmentation.job import plan_crops_and_epochs
from paucal.tasks.segmentation.rules import RULES
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.training.schedules import LinearWarmup


@pytest.mark.parametrize("training", [5.0, 31.0, 100.0, 900.0, 86400.0])
@pytest.mark.parametrize(("one_crop", "evaluation"), [(1.0, 0.5), (20.0, 3.0), (0.02, 0.3), (4.0, 30.0)])
@pytest.mark.parametrize("crops", [1, 8, 64])
def test_time__is_filled_to_a_tenth_and_never_overrun(training, one_crop, evaluation, crops):
    for crops_are_given in (True, False):
        planned, epochs = plan_crops_and_epochs(training, one_crop, evaluation, crops, crops_are_given)
        seconds = epochs * (planned * one_crop + evaluation)
        assert seconds <= training + 1e-9
        if crops_are_given:
            assert planned == crops
            assert training - seconds < crops * one_crop + evaluation
        elif training >= 20 * one_crop + 10 * evaluation:  # so that whole numbers of crops can fill it
            assert seconds >= 0.8 * training


def test_time__is_filled_by_several_epochs_where_it_allows_them():
    assert plan_crops_and_epochs(900.0, 2.0, 1.0, 50, crops_are_given=False)[1] == 10
    assert plan_crops_and_epochs(2.0, 5.0, 1.0, 3, crops_are_given=False) == (1, 0)


def chosen(facts: DataAndMachine, **given):
    return resolve(SegmentSettings(**given), facts, RULES)


def test_few_images_on_a_processor__get_a_small_network_and_a_frozen_stem():
    start = InitialWeightsInfo("the weights", "tf_efficientnet_lite0", normalise="model")
    settings, reasons = chosen(DataAndMachine(21, 2, 512, initial_weights=start))
    assert (settings.model, settings.img_size, settings.width) == ("tf_efficientnet_lite0", [256], 64)
    assert (settings.freeze, settings.backbone_lr, settings.scale) == ("stem", 0.1, [0.7, 1.4])
    assert settings.crops == 8  # 42 steps of 4 crops
    assert settings.time == "15m"
    assert "21 training images" in reasons["freeze"]


def test_a_start_that_has_been_shown_little__is_not_handled_with_care():
    for shown, freeze, rate in ((2_050, "none", 1.0), (UNDERTRAINED_IMAGES, "stem", 0.1), (None, "stem", 0.1)):
        start = InitialWeightsInfo("runs/5", "resnet10t", normalise="model", images_seen=shown)
        settings, _ = chosen(DataAndMachine(21, 2, 512, initial_weights=start))
        assert (settings.freeze, settings.backbone_lr) == (freeze, rate)
    start = InitialWeightsInfo("runs/5", "resnet10t", normalise="model", images_seen=2_050)
    reasons = chosen(DataAndMachine(21, 2, 512, initial_weights=start))[1]
    assert "runs/5 was trained on only 2,050 images: not worth preserving" in reasons["freeze"]


def test_many_images_on_a_gpu__get_the_papers_sizes():
    settings, _ = chosen(DataAndMachine(20_000, 150, 512, device="cuda"))
    assert (settings.img_size, settings.batch_size, settings.width) == ([512], 16, 512)
    assert (settings.freeze, settings.scale, settings.crops) == ("none", [0.5, 2.0], 1)
    assert settings.backbone_lr == 1.0


def test_small_images__get_crops_of_their_size():
    assert chosen(DataAndMachine(50, 3, 100))[0].img_size == [128]
    assert chosen(DataAndMachine(50, 3, 20))[0].img_size == [32]


def test_what_is_given__stays():
    settings, reasons = chosen(DataAndMachine(50, 3, 300), epochs=7, width=20, freeze="none", crops=3)
    assert (settings.epochs, settings.width, settings.freeze, settings.crops) == (7, 20, "none", 3)
    assert settings.time is None
    assert not {"width", "freeze", "crops"} & set(reasons)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes__are_whole_settings_in_their_ranges(name):
    recipe = RECIPES[name]
    settings = SegmentSettings(**recipe.settings)
    check_ranges(settings)
    settings, _ = resolve(settings, DataAndMachine(20_210, 150, 512, device="cuda", devices=8), RULES)
    assert settings.time is None
    steps = 20_210 // settings.effective_batch * settings.epochs
    assert steps == pytest.approx(160_000, rel=0.005)
    assert settings.warmup_epochs * (20_210 // settings.effective_batch) == pytest.approx(1500, rel=0.01)
    assert settings.val_fraction == 0  # else a tenth of the images would not train, nor the steps be made
    assert (settings.lr, settings.weight_decay, settings.effective_batch) == (6e-5, 0.01, 16)
    assert (settings.img_size, settings.schedule, settings.auxiliary) == ([512], "linear", 0.4)


def test_linear_schedule__warms_up_and_falls_in_a_line():
    schedule = LinearWarmup(peak=1.0, horizon=100, warmup=10, start=0.1, floor=0.2)
    assert [schedule(step) for step in (0, 5, 10, 50, 100, 200)] == pytest.approx([0.1, 0.55, 0.92, 0.6, 0.2, 0.2])
