"""The last lines of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paucal.evaluation.calibration import MIN_IMAGES, Calibration
from paucal.methods.training_settings import TrainSettings
from paucal.runs import RunFolder
from paucal.tasks.classification import conclusion
from paucal.tasks.classification.conclusion import calibration_line, kept_model_text, next_steps


def line(temperature: float, images: int) -> str:
    return calibration_line(Calibration(temperature, images, (0.09, 0.02), (0.5, 0.4)))


def test_calibration_line__says_what_the_temperature_did_or_why_there_is_none():
    assert line(1.5, 80) == (
        "confidence: off by 9.0 % on average before, by 2.0 % after a temperature of 1.50, "
        "fitted to 80 validation images"
    )
    assert line(1.0, MIN_IMAGES - 1).endswith(f"{MIN_IMAGES - 1} validation images are too few to fit a temperature")
    assert line(1.0, MIN_IMAGES).endswith(f"{MIN_IMAGES} validation images show no need for a temperature")
    assert line(1.0, 1).endswith("1 validation image is too few to fit a temperature")


@pytest.mark.parametrize(
    ("size", "end"), [((128, 128), ""), ((224, 160), "; the model takes images of 224x160 pixels")]
)
def test_kept_text__names_the_image_size_if_tuning_went_on_to_another(monkeypatch, size, end):
    def of_size(size: tuple[int, int]) -> Any:
        return SimpleNamespace(backbone=SimpleNamespace(image_size=size))

    monkeypatch.setattr(conclusion, "describe_kept_model", lambda *_: "the probe")
    monkeypatch.setattr(conclusion, "read_card", lambda _: of_size(size))
    setup: Any = SimpleNamespace(card=of_size((128, 128)), is_selected=True, tune_record=None)
    kept: Any = None
    assert kept_model_text(RunFolder(Path("runs/1")), setup, kept, kept) == f"the probe{end}"


def test_next_steps__quote_the_folder_of_the_run():
    setup: Any = SimpleNamespace(settings=TrainSettings("digits"), is_selected=True, origins={})
    assert next_steps(RunFolder(Path("my runs/1")), setup)[0].startswith("paucal predict 'my runs/1' new_images/")
