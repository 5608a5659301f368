"""Settings that code read with a default of its own are filled by one rule, with the same values."""

from dataclasses import replace

import pytest

from paucal.methods.supervised import fine_tuning
from paucal.methods.training import resolve_training
from paucal.methods.training_settings import TrainSettings
from paucal.objectives.finetuning import FineTuning
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo, resolve
from paucal.tasks.classification.trainer_inputs import make_augmentation
from paucal.tasks.segmentation.rules import RULES
from paucal.tasks.segmentation.settings import SegmentSettings

FACTS = DataAndMachine(n_train=1000, n_classes=10, median_side=64)


def resolved(settings: TrainSettings, facts: DataAndMachine = FACTS) -> TrainSettings:
    return resolve_training(settings, facts)[0]


def test_soup__is_off_where_no_rule_wants_it():
    assert resolved(TrainSettings(epochs=100, time=None)).soup == 0
    assert resolved(TrainSettings(soup=2)).soup == 2
    started = replace(FACTS, initial_weights=InitialWeightsInfo("timm", "resnet18", chosen=True))
    assert resolved(TrainSettings(init="timm", time="6m"), started).soup == 3


def test_guide_weight__is_the_published_one_with_its_loss_alone():
    guided = TrainSettings(add=["locality"], guide="run", method="supervised")
    assert resolved(guided).guide_weight == 2.5
    assert resolved(replace(guided, guide_weight=0.0)).guide_weight == 0.0
    assert resolved(TrainSettings()).guide_weight is None


@pytest.mark.parametrize(("width", "expected"), [(64, 64), (256, 256), (512, 256)])
def test_auxiliary_width__is_that_of_the_head_up_to_256(width, expected):
    assert resolve(SegmentSettings(width=width), FACTS, RULES)[0].auxiliary_width == expected
    assert resolve(SegmentSettings(width=width, auxiliary_width=8), FACTS, RULES)[0].auxiliary_width == 8


def test_crops__have_the_scale_of_their_rule_and_refuse_to_go_without():
    settings = resolved(TrainSettings(crop="random-resized", epochs=100))
    assert make_augmentation(settings).scale == (0.08, 1.0)
    with pytest.raises(AssertionError):
        make_augmentation(replace(settings, crop_scale=None))
    make_augmentation(replace(settings, crop="padded", crop_scale=None))


def test_layer_decay__is_none_unless_given():
    assert fine_tuning(TrainSettings(eval_mode=False)) == FineTuning(layer_decay=None)
    assert fine_tuning(TrainSettings(layer_decay=0.75)).layer_decay == 0.75
    with pytest.raises(ValueError, match="layer_decay"):
        FineTuning(layer_decay=0)
