"""The model chosen from scratch is the one that the stored comparison found best."""

import json
import statistics
from pathlib import Path

import pytest

from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
RESULTS = sorted(FOLDER.glob("small_data_*.json"))
SIDES = {"cifar10": 32, "clothing": 160}  # shorter side of the images
TRANSFORMERS = ("vit", "swin", "dhvt", "dhvt-drloc")


def groups() -> list[tuple[str, int, dict[str, dict[int, float]]]]:
    """Test accuracy in percent by arm and seed, for each data set and number of training images."""
    found = []
    for file in RESULTS:
        stored = json.loads(file.read_text())
        rows = [row for row in stored["runs"] if not row["tried"] and row["equal"] == "epochs"]
        for images in sorted({row["images"] for row in rows}):
            scores = {arm: {} for arm in TRANSFORMERS}
            for row in rows:
                if row["images"] == images and row["arm"] in scores:
                    scores[row["arm"]][row["seed"]] = 100 * row["test_top1"]
            if min(map(len, scores.values())) >= 2:
                found.append((stored["data"], images, scores))
    return found


def chosen_arm(settings: TrainSettings) -> str:
    family = (settings.model or "").split("_")[0]
    return f"{family}-drloc" if settings.method == "drloc" else family


def test_comparison__is_stored():
    assert groups()


@pytest.mark.parametrize(
    ("data", "images", "scores"), groups(), ids=lambda value: str(value) if isinstance(value, str | int) else ""
)
def test_choice__is_beaten_by_no_other_transformer_beyond_the_spread(data, images, scores):
    facts = DataAndMachine(n_train=images or 3000, n_classes=10, median_side=SIDES[data])
    settings, reasons = resolve(TrainSettings(epochs=100), facts)  # where passes count, not minutes of a processor
    ours = scores[chosen_arm(settings)]
    assert "learned most from few images" in reasons["model"]
    for arm, others in scores.items():
        gains = [others[seed] - ours[seed] for seed in others if seed in ours]
        assert statistics.mean(gains) <= statistics.stdev(gains), arm
    # And it is far above those that this project used to choose.
    assert statistics.mean(ours.values()) > statistics.mean(scores["swin"].values()) + 1


def timed() -> list[tuple[str, dict[str, list[dict]]]]:
    """The arms of each stored comparison in equal minutes of a processor, by its file."""
    return [(file.stem, json.loads(file.read_text())["rows"]) for file in sorted(FOLDER.glob("minutes_*.json"))]


@pytest.mark.parametrize(("name", "arms"), timed(), ids=lambda value: value if isinstance(value, str) else "")
def test_choice__in_minutes_of_a_processor_is_the_one_that_was_best_there(name, arms):
    def best(arm):
        return max((run["test"] for run in arms.get(arm, ()) if "test" in run), default=0.0)

    assert best("ladder") >= best("probe") - 0.02, "the validation images keep the probe where tuning is worse"
    assert best("ladder") > best("scratch") > best("scratch, old")


@pytest.mark.parametrize(("device", "model"), [("cpu", "resnet10t"), ("cuda", "dhvt_tiny_domain_patch16")])
def test_choice__from_scratch_for_photographs_is_quick_on_a_processor_alone(device, model):
    facts = DataAndMachine(n_train=720, n_classes=10, median_side=300, device=device)
    settings, reasons = resolve(TrainSettings(time="15m"), facts)
    assert settings.model == model
    assert (settings.img_size == [64]) == (device == "cpu")
    assert (settings.mixup == 0) == (device == "cpu")
    if device == "cpu":
        assert settings.batch_size == 16
        assert settings.lr == pytest.approx(1e-3)
        assert "CPU" in reasons["model"]


def test_choice__leaves_tiny_images_and_started_runs_as_they_were():
    tiny, _ = resolve(TrainSettings(), DataAndMachine(n_train=1000, n_classes=10, median_side=8, hinted_size=16))
    assert tiny.model == "vit_mini"
    tuned, _ = resolve(
        TrainSettings(init="timm"),
        DataAndMachine(n_train=99, n_classes=2, median_side=300, initial_weights=InitialWeightsInfo("timm")),
    )
    assert tuned.model == "swin_tiny_patch4_window7_224"


@pytest.mark.parametrize(("time", "light"), [("6m", True), (None, False)])
def test_choice__from_named_weights_is_light_in_a_given_time_and_the_papers_otherwise(time, light):
    facts = DataAndMachine(
        n_train=720,
        n_classes=10,
        median_side=300,
        initial_weights=InitialWeightsInfo("timm", "tf_efficientnet_lite0.in1k"),
    )
    settings, _ = resolve(TrainSettings(init="timm", model="tf_efficientnet_lite0.in1k", time=time), facts)
    assert (settings.mixup == 0, settings.rand_augment == "none", settings.soup == 3) == (light, light, light)
    assert (settings.batch_size == 16, settings.lr == 2e-4) == (light, light)
    assert settings.epochs == (None if light else 100)


@pytest.mark.parametrize(("device", "images", "size"), [("cpu", 2761, 16), ("cuda", 2761, 32), ("cpu", 4500, 32)])
def test_choice__takes_smaller_steps_where_a_processor_makes_few_passes(device, images, size):
    start = InitialWeightsInfo("auto", "tf_efficientnet_lite0.in1k", chosen=True)
    facts = DataAndMachine(n_train=images, n_classes=10, median_side=300, initial_weights=start, device=device)
    settings, _ = resolve(TrainSettings(init="auto", model="tf_efficientnet_lite0.in1k", time="15m"), facts)
    assert settings.batch_size == size
