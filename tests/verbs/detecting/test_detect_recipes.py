"""The papers' schedules of detectors: what a recipe resolves to, and what gives way to what is typed."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torchvision import tv_tensors

from paucal.recipes.detection import IMAGES, RECIPES
from paucal.rules.circumstances import SLIGHT, StartFacts
from paucal.rules.resolve import resolve
from paucal.settings.options import check_ranges
from paucal.training import CosineWarmup
from paucal.training.schedules import WarmupThenSteps
from paucal.transfer.detection.options import DetectorOptions
from paucal.transfer.detection.views import PAPER_SCALES, training_view
from paucal.types import UserError
from paucal.verbs.detecting.assembly import assemble
from paucal.verbs.detecting.job import DetectionJob, _schedule
from paucal.verbs.detecting.rules import RULES, BoxFacts
from paucal.verbs.detecting.settings import DetectSettings
from paucal.verbs.run.start_weights import plain_init
from paucal.verbs.run.voice import Quiet
from transfer.detection.made import write_coco
from verbs.detecting.test_detect_runs import GIVEN, TINY

COCO = BoxFacts(IMAGES, 80, 480, device="cuda", devices=8, longer=640)


def filled(name: str, **given) -> tuple[DetectSettings, dict[str, str]]:
    given = {"data": "coco/", "init": "weights.pth", "recipe": name, **given}
    return DetectionJob().check(DetectSettings(**given), dict.fromkeys(given, "flag"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes__are_whole_settings_in_their_ranges(name: str):
    recipe = RECIPES[name]
    assert set(recipe.settings) <= {field.name for field in fields(DetectSettings)}
    settings, origin = filled(name)
    check_ranges(settings)
    assert all(getattr(settings, key) == value for key, value in recipe.settings.items())
    assert all(origin[key] == f"recipe {name}" for key in recipe.settings)
    assert all([recipe.summary, recipe.source, recipe.cost, recipe.expected])
    resolved, _ = resolve(settings, COCO, RULES)
    assert {key: getattr(resolved, key) for key in recipe.settings} == dict(recipe.settings)
    assert resolved.time is None


def test_a_start_that_has_been_shown_little__is_not_handled_with_care():
    few = BoxFacts(205, 3, 480, device="cpu", longer=640)
    for shown, expected in ((2_050, (0, 1.0, "learn")), (SLIGHT, (1, 0.5, "still")), (None, (1, 0.5, "still"))):
        start = StartFacts("runs/5", "resnet10t", normalise="model", shown=shown)
        settings, reasons = resolve(DetectSettings(data="cells/", init="runs/5"), replace(few, start=start), RULES)
        assert (settings.freeze_stages, settings.backbone_rate, settings.norms) == expected
        assert ("runs/5 has been shown 2,050 images" in reasons["norms"]) == (shown == 2_050)


@pytest.mark.parametrize(
    ("name", "epochs", "falls", "cascade"),
    [
        ("detector-coco-1x", 12, (8, 11), False),
        ("detector-coco-3x", 36, (27, 33), False),
        ("cascade-coco-1x", 12, (8, 11), True),
        ("cascade-coco-3x", 36, (27, 33), True),
    ],
)
def test_recipes__resolve_to_the_published_numbers(name: str, epochs: int, falls: tuple[int, int], cascade: bool):
    settings, _ = resolve(filled(name)[0], COCO, RULES)
    assert settings.effective_batch == 16
    assert (settings.img_size, settings.cascade) == ([800, 1333], cascade)
    assert (settings.lr, settings.weight_decay, settings.clip) == (1e-4, 0.05, 0)
    per_pass = IMAGES // settings.effective_batch
    warmup = round(settings.warmup_epochs * per_pass)
    assert (settings.epochs, warmup) == (epochs, 500)
    schedule = _schedule(settings, epochs * per_pass, warmup, per_pass)
    rates = [schedule(step) for step in (0, 250, 500, falls[0] * per_pass - 1, falls[0] * per_pass)]
    assert rates == pytest.approx([1e-7, 5.005e-5, 1e-4, 1e-4, 1e-5])
    assert schedule(falls[1] * per_pass - 1) == pytest.approx(1e-5)
    assert schedule(epochs * per_pass) == pytest.approx(1e-6)
    options = DetectorOptions()
    built = (settings.pyramid_channels, settings.head_dim, settings.finest, settings.anchor, settings.regions)
    assert built == (options.channels, options.head_dim, options.finest, options.anchor, options.regions)


def test_what_is_given__wins_over_a_recipe():
    settings, origin = filled("detector-coco-1x", lr=3e-4, batch_size=4)
    assert (settings.lr, settings.batch_size, settings.epochs) == (3e-4, 4, 12)
    assert (origin["lr"], origin["weight_decay"]) == ("flag", "recipe detector-coco-1x")
    for length in ({"time": "2h"}, {"steps": 100}):
        settings, origin = filled("detector-coco-1x", **length)
        assert (settings.epochs, settings.milestones) == (None, None)
        assert isinstance(_schedule(settings, 100, 5, 10), CosineWarmup)


def test_recipes__want_trained_weights_and_a_name_that_exists():
    with pytest.raises(UserError, match="trains on from a pre-trained backbone"):
        filled("detector-coco-1x", init=None)
    with pytest.raises(UserError, match="did you mean 'detector-coco-1x'"):
        filled("detector-coco-1")


@pytest.mark.parametrize("falls", [[0, 3], [8, 8], [11, 8]])
def test_milestones__grow(falls: list[int]):
    with pytest.raises(UserError, match="expected growing numbers of passes, such as 8 11"):
        filled("detector-coco-1x", milestones=falls)


def test_steps__fall_by_ten_each_and_warm_up_from_the_start():
    schedule = WarmupThenSteps(1.0, (20, 30), warmup=10, start=0.2)
    assert [schedule(step) for step in (0, 5, 10, 19, 20, 29, 30, 99)] == pytest.approx(
        [0.2, 0.6, 1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_optimization__falls_after_passes_and_clips_as_asked(tmp_path: Path):
    images = write_coco(tmp_path / "set", 20).parent
    settings = DetectSettings(str(images), epochs=4, milestones=[2, 3], clip=0.0, lr=1.0, warmup_epochs=0, **TINY)
    made = assemble(plain_init(settings), {**GIVEN, "epochs": "flag"}, Quiet().progress)
    found = DetectionJob().optimization(made)
    per_pass = made.plan.total_steps // 4
    assert [found.schedule(passes * per_pass) for passes in range(4)] == pytest.approx([1.0, 1.0, 0.1, 0.01])
    assert found.clip is None
    usual = assemble(plain_init(replace(settings, milestones=None, clip=5.0)), GIVEN, Quiet().progress)
    assert DetectionJob().optimization(usual).clip == 5.0
    assert isinstance(DetectionJob().optimization(usual).schedule, CosineWarmup)


def test_multiscale__gives_the_published_sides_and_leaves_colours():
    assert [round(800 * scale) for scale in PAPER_SCALES] == list(range(480, 801, 32))
    view = training_view((200, 333), (0.0,) * 3, (1.0,) * 3, hflip=0.0, jitter="multiscale")
    image = tv_tensors.Image(torch.full((3, 100, 200), 100, dtype=torch.uint8))
    shorter = set()
    for seed in range(60):
        torch.manual_seed(seed)
        boxes = tv_tensors.BoundingBoxes([[0.0, 0.0, 100.0, 50.0]], format="XYXY", canvas_size=(100, 200))
        seen, target = view(image, {"boxes": boxes, "labels": torch.tensor([0])})
        height, width = seen.shape[-2:]
        shorter.add(height)
        assert torch.allclose(seen.as_subclass(torch.Tensor), torch.tensor(100 / 255), atol=1e-4)
        torch.testing.assert_close(target["boxes"][0, 2:], torch.tensor([width / 2, height / 2]), atol=1.0, rtol=0)
    assert shorter == {120, 128, 136, 144, 152, 160, 166}  # 166 where the longer side would pass 333
