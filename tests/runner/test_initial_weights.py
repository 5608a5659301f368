"""Runs that start from trained weights, through the command line, and the settings chosen for them."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import yaml
from PIL import Image
from timm.layers.pos_embed import resample_abs_pos_embed

from contracts.test_objectives import StopAfter
from paucal.backbones import BackboneSpec
from paucal.cli.main import main
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.models import published as published_weights
from paucal.models.trained import load_trained
from paucal.objectives import Supervised
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo
from paucal.runner.console import SilentConsole
from paucal.runner.initial_weights import (
    WeightsChoice,
    choose_initial_weights,
    chooses_initial_weights,
    find_initial_weights,
    load_initial_weights,
    with_absolute_init_path,
)
from paucal.runner.life import Stopped, begin, resume
from paucal.tasks.classification.conclusion import Result
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError

QUICK = ["--epochs", "1", "-j", "0", "--batch-size", "8", "--device", "cpu"]
FROM_SCRATCH = ["--model", "vit_mini", "--model-args", "depth=1", "--img-size", "16"]


def make_photos(root: Path, classes: tuple[str, ...]) -> Path:
    generator = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.normal(60 + 50 * label, 20, (20, 20, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A run on three classes, and photos of the same and of other ones."""
    base = tmp_path_factory.mktemp("starting")
    photos = make_photos(base / "photos", ("ant", "bee", "cat"))
    make_photos(base / "fewer", ("cat", "ant"))
    make_photos(base / "others", ("ant", "elk", "fox", "gnu"))
    assert main(["train", str(photos), *FROM_SCRATCH, *QUICK, "--output", str(base / "run")]) == 0
    return base


def weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model.safetensors")


def read(run: Path, name: str):
    text = (run / name).read_text()
    return json.loads(text) if name.endswith("json") else yaml.safe_load(text)


def failure(capsys, *argv) -> str:
    assert main(["train", *map(str, argv)]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    return lines[0].removeprefix("error: ")


def test_init__from_a_run_with_other_classes_and_another_image_size(base, capsys):
    run, source = base / "next", weights(base / "run")
    flags = ["--init", str(base / "run"), "--img-size", "24", "--freeze", "backbone", "--average", "0"]
    assert main(["train", str(base / "others"), *flags, *QUICK, "--output", str(run)]) == 0
    ours = weights(run)
    # Nothing but the classifier may differ, since the backbone is frozen: what was saved is what was loaded.
    expected = resample_abs_pos_embed(source.pop("pos_embed"), [6, 6], num_prefix_tokens=0)
    assert torch.equal(ours["pos_embed"], expected)
    assert ours["head.weight"].shape == (4, 128)
    for name, value in source.items():
        assert name.startswith("head") or torch.equal(ours[name], value), name
    record = read(run, "init.json")
    assert record["share"] == 1
    assert record["adapted"] == {"pos_embed": "resampled from 16 to 36 positions"}
    assert record["classifier"] == "fresh, since the loaded weights have no class elk, fox, gnu"
    assert read(run, "summary.json")["start"]["source"] == f"the run {base / 'run'}"
    config = read(run, "config.yaml")
    assert config["settings"]["init"] == str(base / "run")
    assert config["settings"]["model_args"] == ["depth=1"]
    assert config["origin"]["model"] == f"auto: the model of {base / 'run'}"
    assert config["settings"]["lr"] == pytest.approx(5e-4 * (8 / 64) ** 0.5, rel=1e-3)
    assert config["settings"]["warmup_epochs"] == pytest.approx(0.1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "100 % of the parameters below the classifier" in printed
    assert "frozen for the whole run: 0." in printed


def test_init__keeps_the_classifier_of_known_classes(base):
    run = base / "kept"
    flags = ["--init", str(base / "run" / "model.safetensors"), "--lr", "1e-12", "--average", "0", *QUICK]
    assert main(["train", str(base / "fewer"), *flags, "--output", str(run)]) == 0
    assert load_trained(run).classes == ("ant", "cat")
    torch.testing.assert_close(weights(run)["head.weight"], weights(base / "run")["head.weight"][[0, 2]])
    assert read(run, "init.json")["classifier"] == "kept, 2 of 3 classes found by name"


def test_init__from_a_saved_state_takes_the_averaged_weights(base):
    state = torch.load(base / "run/checkpoints/last.ckpt", weights_only=True)
    average = state["callbacks"]["MovingAverage"]["average"]
    settings = TrainSettings(init=str(base / "run/checkpoints/last.ckpt"), model="vit_mini")
    objective = Supervised(BackboneSpec("vit_mini", 3, image_size=(16, 16), arguments={"depth": 1}).build())
    report = load_initial_weights(
        find_initial_weights(settings), settings.model, objective, ("ant", "bee", "cat"), settings.init_head
    )
    assert report.part == "callbacks.MovingAverage.average"
    for name, value in objective.deployable().state_dict().items():
        assert torch.equal(value, average[name]), name


def test_init__is_not_needed_to_go_on_nor_to_judge(base, tmp_path):
    shutil.copytree(base / "run", tmp_path / "source")
    settings = TrainSettings(
        data=str(base / "photos"), init=str(tmp_path / "source"), epochs=3, batch_size=8, freeze_epochs=1, workers=0
    )
    whole = begin(TrainingJob(), replace(settings, output=str(tmp_path / "whole")), {}, SilentConsole())
    assert begin(
        TrainingJob(), replace(settings, output=str(tmp_path / "run")), {}, SilentConsole(), [StopAfter(4)]
    ) == Stopped(tmp_path / "run", 4, 9)
    shutil.rmtree(tmp_path / "source")
    resumed = resume(TrainingJob(), tmp_path / "run", SilentConsole())
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert resumed.report.scores["top1"].value == whole.report.scores["top1"].value
    assert read(tmp_path / "run", "summary.json")["start"] == read(tmp_path / "whole", "summary.json")["start"]
    assert main(["eval", str(tmp_path / "run")]) == 0


def test_init__is_read_again_where_no_state_was_saved(base, tmp_path):
    shutil.copytree(base / "run", tmp_path / "source")
    settings = TrainSettings(
        data=str(base / "photos"), init=str(tmp_path / "source"), epochs=3, batch_size=8, workers=0, freeze="backbone"
    )
    output = tmp_path / "run"
    assert isinstance(
        begin(TrainingJob(), replace(settings, output=str(output)), {}, SilentConsole(), [StopAfter(2)]), Stopped
    )
    (output / "checkpoints/last.ckpt").unlink()
    shutil.move(tmp_path / "source", tmp_path / "away")
    with pytest.raises(UserError, match="--init: there is no file or run folder"):
        resume(TrainingJob(), output, SilentConsole())
    shutil.move(tmp_path / "away", tmp_path / "source")
    assert isinstance(resume(TrainingJob(), output, SilentConsole()), Result)
    source = weights(base / "run")
    assert all(torch.equal(value, source[n]) for n, value in weights(output).items() if not n.startswith("head"))


def test_bad_starts__are_refused_in_one_sentence(base, tmp_path, capsys):
    data = base / "photos"
    other = timm.create_model("test_resnet", num_classes=3)
    safetensors.torch.save_file(other.state_dict(), tmp_path / "other.safetensors")
    content = (base / "run/model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    torch.save({"model": Hostile()}, tmp_path / "hostile.pth")
    vit = ["--model", "vit_mini"]

    def refused(init, *more):
        return failure(capsys, data, "--init", init, *more, *QUICK)

    assert "there is no file or run folder 'runs/77'" in refused("runs/77")
    assert "the model of the weights in" in refused(tmp_path / "other.safetensors")
    assert "(0.0 % of the parameters)" in refused(tmp_path / "other.safetensors", *vit, "--img-size", "16")
    assert "the weights belong to vit_mini, so choose --model vit_mini" in refused(
        base / "run", "--model", "test_resnet", "--img-size", "64"
    )
    assert "not a readable safetensors file" in refused(tmp_path / "cut.safetensors", *vit)
    assert "posix.system" in refused(tmp_path / "hostile.pth", *vit)
    assert not (tmp_path / "ran").exists()
    assert "timm publishes no weights of vit_mini" in refused("timm", *vit)
    assert "contains no run" in refused(tmp_path)
    data = base / "others"
    assert "--init-head keep: the classifier cannot be kept (fresh" in refused(base / "run", "--init-head", "keep")


def test_bad_fine_tuning__is_refused_in_one_sentence(base, capsys):
    data, run = base / "photos", ["--init", base / "run"]
    for flags, sentence in (
        (["--eval-mode"], "--eval-mode keeps the running statistics of pretrained weights, but this run starts"),
        (["--init-head", "fresh"], "--init-head applies to the classifier of --init"),
        ([*run, "--freeze", "backbone", "--freeze-epochs", "1"], "--freeze backbone lasts for the whole run"),
        ([*run, "--freeze-epochs", "1"], "--freeze-epochs 1 leaves no epoch of 1 for the backbone"),
        ([*run, "--freeze", "9"], "--freeze is 9, but vit_mini has 1 stage or block:"),
        ([*run, "--layer-decay", "2"], "--layer-decay is 2.0, expected a number between 0.01 and 1"),
        ([*run, "--freeze", "everything"], "--freeze: "),
    ):
        assert sentence in failure(capsys, data, *flags, *QUICK)


def test_timm__weights_that_cannot_be_fetched(monkeypatch):
    def offline(*arguments, **options):
        raise OSError("no route to anywhere. And much more.")

    start = find_initial_weights(TrainSettings(init="timm"))  # which model is chosen later
    monkeypatch.setattr(published_weights, "require_reachable", lambda config: None)
    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(
        UserError, match=r"test_vit could not be downloaded \(no route to anywhere\); download timm/test_vit"
    ):
        start.read("test_vit")


def test_timm__weights_are_adapted_and_their_classes_known(monkeypatch):
    torch.manual_seed(0)
    published = timm.create_model("test_vit")
    settings, start = TrainSettings(init="timm", model="test_vit"), find_initial_weights(TrainSettings(init="timm"))
    objective = Supervised(BackboneSpec("test_vit", 2, image_size=(64, 64)).build())
    monkeypatch.setattr(published_weights, "require_reachable", lambda config: None)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: published)
    report = load_initial_weights(
        start, settings.model, objective, ("n01443537", "n01440764")
    )  # the second and the first of ImageNet
    assert report.classifier == "kept, 2 of 1000 classes found by name"
    model = objective.deployable()
    assert torch.equal(model.head.weight, published.head.weight[[1, 0]])
    assert torch.equal(model.blocks[0].attn.qkv.weight, published.blocks[0].attn.qkv.weight)
    assert "pos_embed" in report.adapted


def facts(**changes) -> DataAndMachine:
    return DataAndMachine(n_train=2000, n_classes=10, median_side=32, **changes)


def test_auto__follows_the_papers_fine_tuning_protocol():
    start = InitialWeightsInfo("timm", normalise="model")
    settings, reasons = resolve(TrainSettings(init="timm"), facts(initial_weights=start))
    assert (settings.model, settings.img_size) == ("swin_tiny_patch4_window7_224", [224])
    assert (settings.epochs, settings.warmup_epochs, settings.weight_decay) == (100, 10, 0.05)
    assert (settings.normalise, settings.drloc_weight, settings.crop) == ("model", 0.5, "random-resized")
    assert settings.lr == pytest.approx(5e-4 * (settings.batch_size / 1024) ** 0.5, rel=1e-3)
    assert "fine-tuning" in reasons["lr"]
    assert "fine-tuning" in reasons["epochs"]
    scratch, _ = resolve(replace(settings, init=None, lr=None), facts())
    assert scratch.lr == pytest.approx(2 * settings.lr, rel=1e-3)


def test_auto__takes_over_what_a_run_was_trained_with():
    start = InitialWeightsInfo("runs/1", "resnet18", (48, 64), ("stem_width=32",), "imagenet")
    settings, _ = resolve(TrainSettings(init="runs/1"), facts(initial_weights=start))
    assert (settings.model, settings.img_size, settings.normalise) == ("resnet18", [48, 64], "imagenet")
    assert settings.model_args == ["stem_width=32"]
    other, _ = resolve(TrainSettings(init="runs/1", model="vit_mini", img_size=[32]), facts(initial_weights=start))
    assert (other.model, other.model_args, other.img_size) == ("vit_mini", None, [32])


def test_pin__makes_the_start_absolute(base, monkeypatch):
    monkeypatch.chdir(base)
    assert with_absolute_init_path(TrainSettings(init="run")).init == str(base / "run")
    assert with_absolute_init_path(TrainSettings(init="run/model.safetensors")).init == str(
        base / "run/model.safetensors"
    )
    assert with_absolute_init_path(TrainSettings(init="timm")).init == "timm"
    assert with_absolute_init_path(TrainSettings()).init is None


@pytest.mark.parametrize(
    ("init", "given", "may"),
    [
        (None, {}, True),
        (None, {"epochs"}, True),
        (None, {"init"}, False),  # "none" was given
        (None, {"model_args"}, False),
        ("auto", {"init", "model_args"}, True),
        ("timm", {"init"}, False),
    ],
)
def test_start__may_be_chosen_unless_the_user_names_one(init, given, may):
    assert chooses_initial_weights(TrainSettings(init=init), given, ("model_args",)) is may


def test_chosen_start__comes_with_its_model_and_the_reason(monkeypatch):
    monkeypatch.setattr(
        "paucal.runner.initial_weights.choose_weights", lambda *_: WeightsChoice(("resnet18", "resnet34"), "at hand")
    )
    settings, origin, _ = choose_initial_weights(TrainSettings(), {"lr": "flag"}, 224)
    assert (settings.init, settings.model) == ("auto", "resnet18")
    assert origin == {"lr": "flag", "init": "auto: at hand", "model": "auto: at hand"}
    monkeypatch.setattr("paucal.runner.initial_weights.choose_weights", lambda *_: WeightsChoice((), "none at hand"))
    settings, origin, _ = choose_initial_weights(TrainSettings(), {}, 224)
    assert (settings.init, settings.model, origin) == (None, None, {"init": "auto: none at hand"})


def test_run__that_is_stopped_before_its_length_is_planned_names_no_length(tmp_path):
    assert str(Stopped(tmp_path / "run", 0, 1)).startswith("stopped before step 1; resume with: paucal train --resume ")
