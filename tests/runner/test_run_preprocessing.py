"""How images are prepared for a run's model, and for files that are judged: as their weights had them."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from contracts.test_objectives import StopAfter
from paucal.backbones.weights.checkpoints import WeightsPreprocessing
from paucal.data.decode import DecodeOptions
from paucal.data.views.normalisation import Normalisation
from paucal.methods.training_settings import TrainSettings
from paucal.models.named import open_frozen
from paucal.models.trained import load_trained
from paucal.runner.console import SilentConsole
from paucal.runner.images import normalisation
from paucal.runner.life import begin, resume
from paucal.tasks.classification.job import TrainingJob
from paucal.tasks.classification.trainer_inputs import make_preprocessing

OWN = Normalisation((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
START = WeightsPreprocessing(0.95, "bilinear", (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
TINY = {"epochs": 1, "batch_size": 8, "workers": 0, "device": "cpu"}


@pytest.mark.parametrize(
    ("settings", "start", "ratio", "chosen"),
    [
        ({"model": "resnet50"}, None, 224 / 256, "bicubic"),
        ({"model": "resnet50"}, START, 0.95, "bilinear"),
        ({"model": "resnet50", "crop": "none"}, START, 1.0, "bilinear"),
        ({"model": "resnet50", "crop": "padded"}, None, 1.0, "bicubic"),
        ({"model": "resnet50", "img_size": [64]}, START, 1.0, "bilinear"),
        ({"model": "lvvit_s"}, None, 0.9, "bicubic"),
        ({"model": "lvvit_m"}, None, 1.0, "bicubic"),
        ({"model": "t2t_vit_14"}, None, 0.9, "bicubic"),
        ({"model": "t2t_vit_14", "recipe": "drloc-scratch"}, None, 224 / 256, "bicubic"),
        ({"model": "swin_tiny_patch4_window7_224", "recipe": "drloc-finetune"}, START, 224 / 256, "bicubic"),
    ],
)
def test_run__crops_as_its_weights_do(settings, start, ratio, chosen):
    fed = make_preprocessing(TrainSettings(**{"img_size": [224], **settings}), OWN, start)
    assert (fed.crop_ratio, fed.interpolation) == (ratio, chosen)
    assert (fed.mean, fed.std) == (OWN.mean, OWN.std)


def test_run__takes_mean_and_deviation_of_its_start():
    settings = TrainSettings(model="resnet50", normalise="model")
    coloured: Any = SimpleNamespace(images=SimpleNamespace(decode_options=DecodeOptions()))
    assert normalisation(settings, coloured, START) == Normalisation(START.mean, START.std)
    assert normalisation(settings, coloured) == Normalisation()


def photos(root, grey):
    generator = np.random.default_rng(0)
    for label, name in enumerate(("ant", "bee")):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.normal(grey + 20 * label, 20, (20, 20, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return str(root)


def stored(run):
    return json.loads((run / "model.json").read_text())["preprocessing"]


def test_runs__hand_their_preprocessing_on_also_when_they_are_stopped(tmp_path):
    dark, bright = photos(tmp_path / "dark", 40), photos(tmp_path / "bright", 180)
    base = TrainSettings(data=dark, model="vit_mini", img_size=[16], output=str(tmp_path / "base"), **TINY)
    begin(TrainingJob(), base, {}, SilentConsole())
    mean = stored(tmp_path / "base")["mean"]
    assert max(mean) < 0.3  # of the dark images
    tuned = TrainSettings(data=bright, init=str(tmp_path / "base"), output=str(tmp_path / "tuned"), **TINY)
    begin(TrainingJob(), tuned, {}, SilentConsole(), [StopAfter(1)])
    assert not (tmp_path / "tuned" / "model.json").exists()
    resume(TrainingJob(), tmp_path / "tuned", SilentConsole())
    assert stored(tmp_path / "tuned")["mean"] == mean
    other = TrainSettings(
        data=bright, init=str(tmp_path / "base"), normalise="computed", output=str(tmp_path / "own"), **TINY
    )
    begin(TrainingJob(), other, {}, SilentConsole())
    assert min(stored(tmp_path / "own")["mean"]) > 0.6
    # Its own file is judged as the run is, and an old card keeps its word.
    subject = open_frozen(str(tmp_path / "tuned" / "model.safetensors"), model="vit_mini", image_size=[16])
    assert list(subject.preprocessing.mean) == mean
    card = json.loads((tmp_path / "tuned" / "model.json").read_text())
    card["preprocessing"]["crop_ratio"] = 0.875
    (tmp_path / "tuned" / "model.json").write_text(json.dumps(card))
    assert load_trained(tmp_path / "tuned").card.preprocessing.crop_ratio == 0.875


def test_judged_file__of_dino_has_imagenets_moments_and_its_crop(tmp_path):
    name = "vit_tiny_patch16_224"
    state = timm.create_model(name, num_classes=0).state_dict()
    torch.save(state, tmp_path / "plain.pth")
    teacher = {f"backbone.{key}": value for key, value in state.items()}
    torch.save({"teacher": {**teacher, "head.last_layer.weight_v": torch.zeros(8, 8)}}, tmp_path / "dino.pth")
    dino = open_frozen(str(tmp_path / "dino.pth"), model=name).preprocessing
    assert (dino.crop_ratio, dino.mean) == (224 / 256, (0.485, 0.456, 0.406))
    plain = open_frozen(str(tmp_path / "plain.pth"), model=name).preprocessing
    assert (plain.crop_ratio, plain.mean) == (0.9, (0.5, 0.5, 0.5))
