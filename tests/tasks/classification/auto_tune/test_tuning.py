"""What a way to tune costs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch

from paucal.evaluation.predictions import Predictions
from paucal.methods.training_settings import TrainSettings
from paucal.tasks.classification.auto_tune import tuning
from paucal.tasks.classification.auto_tune.auto_tune import _describe_length, long_run_schedule
from paucal.tasks.classification.auto_tune.record import EvaluatedModel, TuneRecord, calibrated_losses, is_better
from paucal.tasks.classification.auto_tune.trials import FAILED_LOSS, TuningPreset, best_trial_index, presets_for
from paucal.tasks.classification.auto_tune.tuning import UNTRIED_SUFFIX, CostEstimate, choose_preset, equalise_trials
from paucal.tasks.classification.trainer_inputs import make_optimization
from paucal.training import CosineWarmup, Plan


def test_observed__plans_passes_by_the_time_that_the_steps_of_a_trial_took():
    planned = CostEstimate(image_size=[160], epoch_seconds=84.0, steps=40, pixel_ratio=0.5)
    seen = planned.corrected_by(seconds=46.0, eval_seconds=6.0, per_epoch=90)
    assert seen.epoch_seconds == pytest.approx(90 * 1.0 + 6.0)
    assert (seen.image_size, seen.steps, seen.pixel_ratio) == ([160], 40, 0.5)


def test_observed__keeps_the_plan_where_a_trial_says_nothing():
    planned = CostEstimate(image_size=[160], epoch_seconds=84.0, steps=40)
    assert planned.corrected_by(seconds=0.0, eval_seconds=6.0, per_epoch=90) == planned


def trial(score: float, loss: float = 1.0) -> EvaluatedModel:
    return EvaluatedModel("a way", score, 20.0, {"loss": loss})


def best_of(trials: list[EvaluatedModel], images: int) -> int:
    return best_trial_index(trials, images, [[224]] * len(trials))


def test_best_of__takes_another_way_than_the_first_where_it_leads_by_more_than_chance_would():
    # The standard error of the difference of 0.79 and 0.84 is 0.061 on 81 images and 0.031 on 307.
    trials = [trial(0.79), trial(0.70), trial(0.84)]
    assert best_of(trials, 81) == 0
    assert best_of(trials, 307) == 2
    assert best_of([trial(0.93), trial(0.99)], 120) == 1


def test_best_of__prefers_the_lower_loss_among_equals_and_any_way_to_one_that_failed():
    assert best_of([trial(0.5), trial(0.9, 0.4), trial(0.9, 0.3)], 100) == 2
    assert best_of([trial(0.0, FAILED_LOSS), trial(0.3)], 100) == 1
    assert best_of([trial(0.0, FAILED_LOSS), trial(0.0, FAILED_LOSS)], 100) == 0


def test_best_of__judges_by_losses_image_by_image_where_accuracy_cannot_tell():
    """Of 100 images each is 0.1 nats better or 0.02 worse by turns: the lead is 0.04, its standard error 0.006."""
    first = [0.5 + 0.01 * (number % 7) for number in range(100)]
    steady = [loss - (0.1 if number % 2 else -0.02) for number, loss in enumerate(first)]
    chance = [loss - (0.9 if number % 2 else -0.82) for number, loss in enumerate(first)]  # the same lead, 0.086

    def judged(losses: list[float], score: float) -> EvaluatedModel:
        return EvaluatedModel("a way", score, 20.0, {"loss": sum(losses) / 100, "losses": losses})

    assert best_of([judged(first, 0.80), judged(steady, 0.78)], 100) == 1
    assert best_of([judged(first, 0.80), judged(chance, 0.82)], 100) == 0
    assert best_of([judged(first, 0.90), judged(steady, 0.80)], 100) == 0  # accuracy can tell
    assert best_of([judged(first, 0.80), judged(steady, 0.79), judged(first, 0.92)], 100) == 2


def test_best_of__takes_smaller_images_only_where_they_lead_clearly():
    """The standard error of the difference of 0.728 and 0.815 is 0.066 on 81 images, and 0.021 on 810."""
    sides = [[224], [128], [224]]
    trials = [trial(0.728), trial(0.815, 0.1), trial(0.72)]
    assert best_of(trials, 81) == 1
    assert best_trial_index(trials, 81, sides) == 0
    assert best_trial_index(trials, 810, sides) == 1
    assert best_trial_index([trial(0.728), trial(0.74, 0.1), trial(0.82)], 81, sides) == 2
    assert best_trial_index([trial(0.0, FAILED_LOSS), trial(0.037)], 81, sides) == 1  # one that failed is never taken


def test_better__is_a_lower_loss_where_accuracy_cannot_tell():
    low, high = [0.1, 0.9] * 40, [0.2, 0.85] * 40
    assert is_better(0.89, low, 0.91, high)
    assert not is_better(0.91, high, 0.89, low)
    assert not is_better(0.91, low, 0.91, low)
    assert is_better(0.95, high, 0.80, low)  # a standard error of the difference is 0.051 here
    assert not is_better(0.80, low, 0.95, high)


def test_losses__are_those_at_the_best_temperature():
    labels = torch.arange(30) % 3
    logits = 10.0 * torch.nn.functional.one_hot(labels).double()
    logits[0] = torch.tensor([0.0, 10.0, 0.0])  # one wrong answer of 30, which costs 10 nats as it is
    losses = calibrated_losses(Predictions(torch.arange(30), logits, labels))
    assert 4.0 < losses[0] < 6.0
    assert len(losses) == 30
    assert sum(losses) / 30 < 0.25  # and 0.33 as it is


def test_trials__have_as_many_steps_as_take_the_same_time():
    """Of 40 steps an epoch: half a second, a second and two seconds a step; 30 seconds fit."""
    costs = [CostEstimate([224], epoch, steps) for epoch, steps in ((20.0, 60), (40.0, 30), (80.0, 15))]
    assert [cost.steps for cost in equalise_trials(costs, 40)] == [60, 30, 15]
    # Where 300 seconds fit, none takes more than the slowest one's epoch of 80 seconds.
    costs = [CostEstimate([224], epoch, steps) for epoch, steps in ((20.0, 600), (40.0, 300), (80.0, 150))]
    assert [cost.steps for cost in equalise_trials(costs, 40)] == [160, 80, 40]


def test_length__is_described_with_what_limits_it():
    assert _describe_length(4, 30.0, 125.0, 60) == "4 epochs of 30 s each fit in the time"
    assert _describe_length(1, 60.0, 50.0, 60) == "part of an epoch of 1 min fits in the time"


def test_presets__tune_norms_and_biases_alone_of_transformers_and_not_of_batch_norm_networks():
    frozen = [
        [preset.settings.get("freeze") for preset in presets_for(timm.create_model(name, num_classes=3))]
        for name in ("vit_tiny_patch16_224", "test_efficientnet")
    ]
    assert frozen[0] == [7, None, None, "weights"]
    assert frozen[1][0] is not None
    assert frozen[1][1:] == [None, None]


def names_of(model: str = "vit_tiny_patch16_224", **given: Any) -> list[str]:
    setup: Any = SimpleNamespace(
        objective=SimpleNamespace(deployable=lambda: timm.create_model(model, num_classes=3)),
        settings=TrainSettings(**given),
        origins=dict.fromkeys(given, "flag"),
    )
    return [preset.name for preset in tuning._list_presets(setup)]


def test_presets__are_named_by_the_settings_that_are_left():
    for name in ("vit_tiny_patch16_224", "test_efficientnet"):
        assert names_of(name) == [preset.name for preset in presets_for(timm.create_model(name, num_classes=3))]
    assert names_of(lora_rank=8) == ["rate 1e-4", "rate 3e-4", "rate 5e-5", "rate 1e-3"]
    held = ["rate 1e-4", "rate 3e-4, layer decay 0.75", "rate 5e-5, layer decay 0.75"]
    assert names_of(freeze="stem") == held  # 1e-3 is for norms and biases alone
    assert names_of(freeze="weights") == [*held, "rate 1e-3"]
    assert names_of(lr=1e-4) == [
        "last stages alone, crop scale 0.5",
        "all layers, layer decay 0.75, crop scale 0.5",
        "all layers, layer decay 0.75, crop scale 0.35",
        "norms and biases alone, crop scale 0.5",
    ]
    assert names_of(lora_rank=8, lr=1e-4) == ["crop scale 0.5", "crop scale 0.35"]
    assert names_of(lora_rank=8, lr=1e-4, crop_scale=0.5) == ["the given settings"]
    assert names_of("test_efficientnet", eval_mode=True, lr=1e-4)[0] == "last stages alone, crop scale 0.5"


def test_continuation__leaves_the_first_epochs_as_they_are_and_goes_on_at_a_low_rate():
    assert long_run_schedule(20, 3e-4) == {}
    long = TrainSettings(**long_run_schedule(50, 3e-4), epochs=50, lr=3e-4)
    schedule = make_optimization(long, Plan(total_steps=500, steps_per_epoch=10)).schedule
    usual = CosineWarmup(3e-4, horizon=200, warmup=20, start=3e-7, floor=3e-5)
    assert [schedule(step) for step in range(201)] == pytest.approx([usual(step) for step in range(201)])
    assert schedule(350) == schedule(500) == pytest.approx(3e-5)


CAREFUL, BOLD = TuningPreset("careful", {"lr": 1e-4}), TuningPreset("bold", {"lr": 1e-3})


def timed(left: float, epoch: float, costs: dict[str, dict[str, Any]] | None = None) -> Any:
    """Return what choosing a way asks of a run, with so many seconds left and passes that take so many."""
    said: list[str] = []
    return SimpleNamespace(
        record=SimpleNamespace(preset_costs=costs or {}, trials=(), budget=900.0),
        setup=SimpleNamespace(
            plan=SimpleNamespace(steps_per_epoch=50),
            data=SimpleNamespace(split_indices=lambda name: range(100), counts=lambda: {"train": 100, "val": 0}),
            settings=SimpleNamespace(img_size=[224]),
        ),
        eval_seconds=lambda pixel_ratio=1.0: 0.0,
        seconds_left=lambda pixel_ratio=1.0: left,
        plan_for_preset=lambda settings: None,
        epoch=epoch,
        console=SimpleNamespace(say=said.append),
        said=said,
    )


@pytest.fixture
def tried(monkeypatch):
    """Return the names of the ways that were tried; each costs what the run says, and a trial stops the choice."""

    def stop(state, preset, cost):
        found.append(preset.name)
        raise KeyboardInterrupt

    found = []
    monkeypatch.setattr(tuning, "_list_presets", lambda setup: [CAREFUL, BOLD])
    monkeypatch.setattr(tuning, "is_length_timed", lambda setup: True)
    monkeypatch.setattr(tuning, "_cached_seconds_per_image", lambda state, preset, side: state.epoch / 100)
    monkeypatch.setattr(tuning, "_estimate_cost", lambda state, preset, count: CostEstimate([160], state.epoch, 20))
    monkeypatch.setattr(tuning, "_load_or_run_trial", stop)
    monkeypatch.setattr(tuning, "_prepare_head", lambda state, side: found.append(f"head {side}"))
    return found


def test_choose_way__tries_none_where_trials_would_take_the_passes_that_the_careful_one_needs(tried):
    state = timed(left=100, epoch=25)  # 76 seconds after the trials: less than four passes
    preset, cost = choose_preset(state) or pytest.fail("no way")
    assert (preset, cost.epoch_seconds, tried) == (CAREFUL, 25, ["head [160]"])  # one head, for the way that goes on
    assert state.said == ["note: no time to try several presets; using the most careful preset: careful"]


def test_choose_way__tries_all_where_four_passes_are_left(tried):
    with pytest.raises(KeyboardInterrupt):
        choose_preset(timed(left=100, epoch=19))
    assert tried == ["careful"]


def test_choose_way__goes_on_as_it_was_begun(tried):
    with pytest.raises(KeyboardInterrupt):
        choose_preset(timed(left=10, epoch=20, costs={"careful": {}, "bold": {}}))
    chosen = choose_preset(timed(left=1000, epoch=20, costs={"careful": {}, "careful" + UNTRIED_SUFFIX: {}}))
    assert chosen is not None
    assert chosen[0] == CAREFUL
    assert tried == ["careful", "head [160]"]


def of_any_size(monkeypatch, folder: Path, left: float, unlabelled: EvaluatedModel | None = None) -> Any:
    """Return what choosing a size asks of a run, whose epochs take 10 seconds at 240 pixels."""
    monkeypatch.setattr(tuning, "is_length_timed", lambda setup: True)
    monkeypatch.setattr(tuning, "is_automatic_setting", lambda setup, name: True)
    monkeypatch.setattr(tuning, "_supports_any_size", lambda setup: True)
    monkeypatch.setattr(tuning, "_cached_seconds_per_image", lambda state, preset, side: 0.1 * (side[0] / 240) ** 2)
    state = timed(left=left, epoch=10)
    state.setup.settings.img_size, state.image_seconds, state.run = [240], 0.0, SimpleNamespace(path=folder)
    state.record = TuneRecord(budget=240.0, probe=EvaluatedModel("probe", 0.7, 6.0), unlabelled=unlabelled)
    return state


@pytest.mark.parametrize(
    ("is_kept", "labelled", "side"), [(False, 100, [160]), (True, 100, [240]), (True, 299, [240]), (True, 300, [160])]
)
def test_choose_side__keeps_the_size_where_images_without_labels_improved_the_first_model_of_few_labels(
    monkeypatch, tmp_path, is_kept, labelled, side
):
    unlabelled = EvaluatedModel("images without labels", 0.8, 90.0, {"kept": is_kept})
    state = of_any_size(monkeypatch, tmp_path, 35, unlabelled)  # seven epochs at 160 pixels, three at 240
    state.setup.data.split_indices = lambda name: range(labelled)
    chosen = tuning._choose_image_size(state, CAREFUL, 1.0) or pytest.fail("no size")
    assert chosen[0] == side


@pytest.mark.parametrize(("left", "size"), [(1.2, [128]), (0.9, None)])
def test_choose_side__needs_fifty_steps_of_a_long_epoch(monkeypatch, tmp_path, left, size):
    state = of_any_size(monkeypatch, tmp_path, left)  # an epoch at 128 pixels takes 2.8 seconds
    state.setup.plan.steps_per_epoch = 150
    chosen = tuning._choose_image_size(state, CAREFUL, 1.0)
    assert (chosen and chosen[0]) == size


def test_trial__after_one_that_a_load_made_shorter_is_as_short(monkeypatch):
    """It has half the steps, half as much time, and the number of threads that steps are timed with."""
    state, asked = timed(left=500, epoch=52), []
    state.eval_seconds, state.setup.plan = lambda pixel_ratio: 2.0, SimpleNamespace(steps_per_epoch=50)
    state.setup.data.primary_metric = SimpleNamespace(format_score=str)
    state.run, state.reassemble, state.save = None, lambda **_: None, lambda **_: None
    state.record.trials = (EvaluatedModel("careful", 0.5, 30.0, {"steps": 10, "planned": 20}),)

    def run_trial(run, setup, preset, steps, console, time_plan):
        asked.append((steps, time_plan))
        return EvaluatedModel(preset.name, 0.6, 20.0, {"steps": steps})

    monkeypatch.setattr(tuning, "run_trial", run_trial)
    monkeypatch.setattr(tuning, "is_length_timed", lambda setup: True)
    monkeypatch.setattr(tuning, "_prepare_head", lambda state, side: None)
    tried = tuning._load_or_run_trial(state, BOLD, CostEstimate([224], epoch_seconds=52.0, steps=30))
    assert (asked[0][0], tried.details["planned"]) == (15, 30)
    found = asked[0][1]
    assert (found.step, found.evaluation, found.most_steps) == (1.0, 2.0, 15)
    assert found.budget == 1.5 * (15 * 1.0 + 2.0) + 5.0
    assert (found.spent, found.closing) == (0.0, 0.0)
    monkeypatch.setattr(tuning, "is_length_timed", lambda setup: False)
    tuning._load_or_run_trial(state, BOLD, CostEstimate([224], epoch_seconds=52.0, steps=30))
    assert asked[1][1] is None
