"""The papers' schedules of detectors: what a recipe resolves to, and what gives way to what is typed."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torchvision import tv_tensors

from paucal.data.dataset import SampleKey
from paucal.recipes.detection import RECIPES, TRAINING_IMAGES
from paucal.rules.resolve import UNDERTRAINED_IMAGES, InitialWeightsInfo, resolve
from paucal.runner.console import SilentConsole
from paucal.runner.initial_weights import without_none_init
from paucal.settings.options import check_ranges
from paucal.tasks.detection.assembly import assemble
from paucal.tasks.detection.batches import BoxedDataset
from paucal.tasks.detection.images import open_boxed_images
from paucal.tasks.detection.job import DetectionJob, make_schedule
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.rules import RULES, BoxFacts
from paucal.tasks.detection.settings import DetectSettings, detector_options
from paucal.tasks.detection.views import PAPER_SCALES, make_crop, make_training_transform
from paucal.training import CosineWarmup
from paucal.training.schedules import WarmupThenSteps
from paucal.types import UserError
from tasks.detection.made import TINY, write_coco
from tasks.detection.test_detect_runs import GIVEN

COCO = BoxFacts(TRAINING_IMAGES, 80, 480, device="cuda", devices=8, median_longer_side=640)


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
    few = BoxFacts(205, 3, 480, device="cpu", median_longer_side=640)
    for shown, expected in (
        (2_050, ("none", 1.0, False)),
        (UNDERTRAINED_IMAGES, (1, 0.5, True)),
        (None, (1, 0.5, True)),
    ):
        start = InitialWeightsInfo("runs/5", "resnet10t", normalise="model", images_seen=shown)
        settings, reasons = resolve(
            DetectSettings(data="cells/", init="runs/5"), replace(few, initial_weights=start), RULES
        )
        assert (settings.freeze, settings.backbone_lr, settings.eval_mode) == expected
        assert ("runs/5 was trained on only 2,050 images" in reasons["eval_mode"]) == (shown == 2_050)


@pytest.mark.parametrize(
    ("name", "epochs", "falls", "drop_path"),
    [
        ("detector-coco-1x", 12, (8, 11), 0.1),
        ("detector-coco-3x", 36, (27, 33), 0.2),
        ("cascade-coco-1x", 12, (8, 11), 0.0),
        ("cascade-coco-3x", 36, (27, 33), 0.2),
    ],
)
def test_recipes__resolve_to_the_published_numbers(name: str, epochs: int, falls: tuple[int, int], drop_path: float):
    settings, _ = resolve(filled(name)[0], COCO, RULES)
    assert settings.effective_batch == 16
    assert (settings.model, settings.drop_path) == ("padded_swin_tiny_patch4_window7_224", drop_path)
    assert (settings.lr, settings.weight_decay, settings.clip, settings.average) == (1e-4, 0.05, 0, 0)
    assert (settings.img_size, settings.jitter, settings.hflip) == ([800, 1333], "cropped", 0.5)
    assert (settings.empty_images, settings.least_box) == ("drop", 1.0)
    per_pass = TRAINING_IMAGES // settings.effective_batch
    warmup = round(settings.warmup_epochs * per_pass)
    assert (settings.epochs, warmup) == (epochs, 500)
    schedule = make_schedule(settings, epochs * per_pass, warmup, per_pass)
    rates = [schedule(step) for step in (0, 250, 500, falls[0] * per_pass - 1, falls[0] * per_pass)]
    assert rates == pytest.approx([1e-7, 5.005e-5, 1e-4, 1e-4, 1e-5])
    assert schedule(falls[1] * per_pass - 1) == pytest.approx(1e-5)
    assert schedule(epochs * per_pass) == pytest.approx(1e-6)


SHARED = {"pooling": "aligned", "pyramid_norm": "none", "candidates": 2000, "masks": True}


@pytest.mark.parametrize("length", ["1x", "3x"])
def test_recipes__build_the_published_detectors(length: str):
    """All that is not named here is the default, which is the papers' too: 256 channels, 512 regions, ..."""
    plain, cascade = (filled(f"{kind}-coco-{length}", masks="on")[0] for kind in ("detector", "cascade"))
    assert detector_options(plain) == DetectorOptions(
        **SHARED, head="2fc", box_loss="l1", proposal_loss="l1", matching="regions", proposals=1000
    )
    assert detector_options(cascade) == DetectorOptions(
        **SHARED,
        cascade=True,
        head="4conv1fc",
        cascade_boxes="per-class",
        cascade_average="logits",
        box_loss="giou",
        proposal_loss="smooth-l1",
        matching="anchors",
        proposals=2000,
    )
    assert (plain.sync_bn, cascade.sync_bn) == (False, True)


def test_what_nobody_asks_for__stays_as_it_was():
    """Small data of users: the settings of before, which were measured."""
    settings, _ = resolve(DetectSettings(data="cells/"), replace(COCO, n_train=205), RULES)
    assert detector_options(settings) == DetectorOptions(masks=True)
    assert (settings.empty_images, settings.least_box, settings.jitter, settings.sync_bn) == ("keep", 0, "light", False)


def test_what_is_given__wins_over_a_recipe():
    settings, origin = filled("detector-coco-1x", lr=3e-4, batch_size=4)
    assert (settings.lr, settings.batch_size, settings.epochs) == (3e-4, 4, 12)
    assert (origin["lr"], origin["weight_decay"]) == ("flag", "recipe detector-coco-1x")
    for length in ({"time": "2h"}, {"steps": 100}):
        settings, origin = filled("detector-coco-1x", **length)
        assert (settings.epochs, settings.milestones) == (None, None)
        assert isinstance(make_schedule(settings, 100, 5, 10), CosineWarmup)


def test_recipes__want_trained_weights_and_a_name_that_exists():
    with pytest.raises(UserError, match="starts from a pre-trained backbone"):
        filled("detector-coco-1x", init=None)
    with pytest.raises(UserError, match="did you mean 'detector-coco-1x'"):
        filled("detector-coco-1")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"head": "4conv"}, r"--head: '4conv' is unknown, expected one of 2fc, 4conv1fc; did you mean '4conv1fc'\?"),
        ({"cascade_boxes": "per-class"}, "--cascade-boxes is per-class, but only a cascade has several heads"),
        ({"cascade_average": "logits"}, "--cascade-average is logits, but only a cascade has several heads"),
        ({"finest": 5}, "--finest is 5"),
    ],
)
def test_parts_that_do_not_exist_or_fit__are_refused(given: dict, words: str):
    with pytest.raises(UserError, match=words):
        DetectionJob().check(DetectSettings(data="cells/", **given), dict.fromkeys(given, "flag"))


@pytest.mark.parametrize("falls", [[0, 3], [8, 8], [11, 8]])
def test_milestones__grow(falls: list[int]):
    with pytest.raises(UserError, match="expected ascending numbers of epochs, such as 8 11"):
        filled("detector-coco-1x", milestones=falls)


def test_steps__fall_by_ten_each_and_warm_up_from_the_start():
    schedule = WarmupThenSteps(1.0, (20, 30), warmup=10, start=0.2)
    assert [schedule(step) for step in (0, 5, 10, 19, 20, 29, 30, 99)] == pytest.approx(
        [0.2, 0.6, 1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_optimization__falls_after_passes_and_clips_as_asked(tmp_path: Path):
    images = write_coco(tmp_path / "set", 20).parent
    settings = DetectSettings(str(images), epochs=4, milestones=[2, 3], clip=0.0, lr=1.0, warmup_epochs=0, **TINY)
    made = assemble(without_none_init(settings), {**GIVEN, "epochs": "flag"}, SilentConsole().progress)
    found = DetectionJob().optimization(made)
    per_pass = made.plan.total_steps // 4
    assert [found.schedule(passes * per_pass) for passes in range(4)] == pytest.approx([1.0, 1.0, 0.1, 0.01])
    assert not found.clip
    usual = assemble(without_none_init(replace(settings, milestones=None, clip=5.0)), GIVEN, SilentConsole().progress)
    assert DetectionJob().optimization(usual).clip == 5.0
    assert isinstance(DetectionJob().optimization(usual).schedule, CosineWarmup)


def test_multiscale__gives_the_published_sides_and_leaves_colours():
    assert [round(800 * scale) for scale in PAPER_SCALES] == list(range(480, 801, 32))
    view = make_training_transform((200, 333), (0.0,) * 3, (1.0,) * 3, hflip=0.0, jitter="multiscale")
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


def test_cropped__cuts_half_of_the_images_as_published():
    """The grey level of a pixel is its column in the image: what is seen of it tells what was cut."""
    view = make_training_transform((200, 333), (0.0,) * 3, (1.0,) * 3, hflip=0.0, jitter="cropped")
    ramp = torch.arange(200, dtype=torch.uint8).expand(3, 100, 200).clone()
    whole, kept = 0, []
    for seed in range(200):
        torch.manual_seed(seed)
        corners = [[20.0, 10.0, 60.0, 50.0], [150.0, 80.0, 151.5, 81.5]]
        boxes = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(100, 200))
        masks = torch.zeros(2, 100, 200, dtype=torch.uint8)
        masks[0, 10:50, 20:60], masks[1, 80:82, 150:152] = 1, 1
        target = {"boxes": boxes, "labels": torch.tensor([0, 1]), "masks": tv_tensors.Mask(masks)}
        seen, target = view(tv_tensors.Image(ramp), target)
        height, width = seen.shape[-2:]
        assert height <= 200 or width <= 333
        first, last = (float(seen[0, 0, place]) * 255 for place in (0, -1))
        scale = width / (last - first + 1)
        whole += first < 0.5 and last > 198.5
        assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"])
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
        for box, label in zip(target["boxes"], target["labels"], strict=True):
            left, right = (float(edge) / scale + first for edge in (box[0], box[2]))
            assert corners[int(label)][0] - 1.5 <= left <= right <= corners[int(label)][2] + 1.5
        kept.append(len(target["boxes"]))
    assert 70 <= whole <= 130
    assert set(kept) >= {1, 2}


def test_crops__are_of_the_published_sides():
    """Before the last scaling: 384 to 600 pixels a side of images whose shorter side is 400, 500 or 600."""
    cut = make_crop((800, 1333))
    image = tv_tensors.Image(torch.zeros(3, 480, 640, dtype=torch.uint8))
    sides = []
    for seed in range(40):
        torch.manual_seed(seed)
        boxes = tv_tensors.BoundingBoxes([[0.0, 0.0, 640.0, 480.0]], format="XYXY", canvas_size=(480, 640))
        seen, target = cut(image, {"boxes": boxes, "labels": torch.tensor([0])})
        sides.append(tuple(seen.shape[-2:]))
        assert target["boxes"][0].tolist() == pytest.approx([0, 0, sides[-1][1], sides[-1][0]], abs=0.01)
    assert all(384 <= height <= 600 and 384 <= width <= 600 for height, width in sides)
    assert min(side for one in sides for side in one) < 420
    assert max(side for one in sides for side in one) > 580


def with_empty_and_thin(folder: Path) -> Path:
    """Write 20 images, of which the first three show nothing and the fourth one thin box beside its others."""
    file = write_coco(folder, 20)
    content = json.loads(file.read_text())
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] > 2]
    first = next(one for one in content["annotations"] if one["image_id"] == 3)
    content["annotations"].append({**first, "id": 9999, "bbox": [1, 1, 30, 0.9]})
    file.write_text(json.dumps(content))
    return folder


def test_images_without_objects__are_left_out_of_training_alone(tmp_path: Path):
    images = with_empty_and_thin(tmp_path / "set")
    settings = DetectSettings(str(images), epochs=1, **TINY)
    kept, dropped = (
        assemble(
            without_none_init(replace(settings, empty_images=how)),
            {**GIVEN, "epochs": "flag"},
            SilentConsole().progress,
        )
        for how in ("keep", "drop")
    )
    before, after = kept.data.counts(), dropped.data.counts()
    empty = [index for index in kept.data.split_indices("train") if not len(kept.images.boxes_of(int(index)))]
    assert empty
    assert after == {**before, "train": before["train"] - len(empty)}
    assert all(len(dropped.images.boxes_of(int(index))) for index in dropped.data.split_indices("train"))
    words = f"left out: {len(empty)} training image{'s' if len(empty) > 1 else ''} without an object"
    assert dropped.data.split.description == f"{kept.data.split.description}; {words}"


def test_parts_without_an_object__select_no_state_and_give_no_score(tmp_path: Path):
    for part, count in (("train", 6), ("val", 3), ("test", 3)):
        write_coco(tmp_path / part, count)

    def parts_without(part: str):
        file = tmp_path / part / "_annotations.coco.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "annotations": []}))
        settings = without_none_init(DetectSettings(str(tmp_path), epochs=1, **TINY))
        return assemble(settings, {**GIVEN, "epochs": "flag"}, SilentConsole().progress).data

    data = parts_without("val")
    assert data.counts() == {"train": 6, "val": 0, "test": 3}
    words = "left out: 3 validation images without an object, which cannot select a model"
    assert data.split.description.endswith(words)
    with pytest.raises(UserError, match="the detector cannot be evaluated, since there is no object in 3 test images"):
        parts_without("test")


def test_fraction_that_leaves_no_test_image__is_refused(tmp_path: Path):
    write_coco(tmp_path / "set", 6)
    settings = without_none_init(DetectSettings(str(tmp_path / "set"), epochs=1, test_fraction=0.01, **TINY))
    with pytest.raises(UserError, match="the detector cannot be evaluated, since there is no object in 0 test images"):
        assemble(settings, {**GIVEN, "epochs": "flag"}, SilentConsole().progress)


@pytest.mark.parametrize(("min_side", "boxes"), [(0.0, 1), (0.9, 1), (1.0, 0)])
def test_boxes_under_a_side__are_not_learned(tmp_path: Path, min_side: float, boxes: int):
    boxed = open_boxed_images(str(with_empty_and_thin(tmp_path / "set")))
    place = boxed.images.keys.index("3.png")
    view = make_training_transform((96, 96), (0.0,) * 3, (1.0,) * 3, hflip=0.0, jitter="cropped")
    counts = []
    for epoch in range(20):
        sample = BoxedDataset(boxed, view, seed=0, min_side=min_side)[SampleKey(place, epoch)]
        counts.append(sum(1 for box in sample.boxes if float((box[2:] - box[:2]).min()) < 2))
    assert max(counts) == boxes
    assert len(boxed.boxes_of(place)) == len(boxed.boxes["3.png"])  # they are judged all the same
