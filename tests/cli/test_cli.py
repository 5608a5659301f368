"""The command line as a person meets it first: help, the list of models, and a whole run."""

import json
import runpy
import sys
from importlib.metadata import version

import pytest
import timm
import yaml

from cli.calls import table
from paucal.cli.main import COMMAND_SUMMARIES, main
from paucal.methods import pretraining, training
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training_settings import TrainSettings
from paucal.rules import pretraining as pretrain_rules
from paucal.rules import training as train_rules
from paucal.rules.resolve import rules_by_name
from paucal.settings.options import rule_chosen_names
from paucal.tasks.segmentation import rules as segmentation
from paucal.tasks.segmentation.settings import SegmentSettings


def test_module__runs_as_torchrun_starts_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["-m", "--version"])
    monkeypatch.delitem(sys.modules, "paucal.cli.main")  # as in a process that begins with it
    with pytest.raises(SystemExit) as end:
        runpy.run_module("paucal.cli.main", run_name="__main__", alter_sys=True)
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == version("paucal")


def test_help__needs_no_arguments(capsys):
    assert main([]) == 0
    assert "paucal COMMAND" in capsys.readouterr().out
    assert main(["--version"]) == 0
    for verb in ("train", "eval", "predict", "models"):
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        assert f"paucal {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", COMMAND_SUMMARIES)
def test_help__shows_what_can_be_given(capsys, verb):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text = " ".join(capsys.readouterr().out.split()).replace("--batch-size, -b {", "--batch-size {")  # Python 3.13
    assert "SUPPRESS" not in text
    assert "default: [" not in text
    shown = {
        "train": (
            *("--batch-size {auto,INT}", "--freeze {stem,backbone,weights,INT}", "{none,paper,reference,INT}"),
            *("--lr FLOAT", "usage: paucal train [DATA] [--flags]", "and accumulates gradients (default: chosen)"),
            *(
                "--config FILE",
                "--output PATH",
                "--time DURATION",
                "YAML file of settings",
                "'chosen': chosen from the images and the machine",
            ),
        ),
        "predict": ("usage: paucal predict RUN PATHS [PATHS ...] [--flags]", "(default: chosen)"),
        "eval": ("--protocol PROTOCOL [PROTOCOL ...]", "(default: classification)"),
    }
    for words in shown.get(verb, ("show this help message and exit",)):
        assert words in text


def test_chosen__are_the_settings_that_have_a_rule():
    of_methods = {name for entry in training.ENTRIES for name in entry.rules}
    assert rule_chosen_names(TrainSettings) == set(train_rules.RULES) | of_methods
    of_methods = {name for entry in pretraining.METHODS.values() for name in entry.rules}
    assert rule_chosen_names(SegmentSettings) == set(segmentation.RULES) | {"epochs", "warmup_epochs"}
    shared = rules_by_name((*train_rules.PROCESS_RULES, *train_rules.COMPUTE_RULES)) | pretrain_rules.RULES
    assert rule_chosen_names(PretrainSettings) == set(shared) | of_methods


def test_models__lists_ours_and_timms(capsys):
    assert main(["models", "*_mini"]) == 0
    assert "paucal" in capsys.readouterr().out
    assert main(["models", "resnet50"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("resnet50 "))
    assert row.split() == ["resnet50", "224x224", "25.56", "M", "4.09", "7x7", "timm", "0.1"]
    assert main(["models", "--ours"]) == 0
    assert "resnet50" not in capsys.readouterr().out


def test_train__leaves_the_whole_run_folder(trained):
    run = trained / "run"
    names = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert names >= {
        *("config.yaml", "env.json", "split.csv", "metrics.csv", "train.log", "report.html", "summary.json"),
        *("checkpoints/best.ckpt", "checkpoints/last.ckpt", "model.safetensors", "model.json"),
        *("plots/curves.png", "plots/confusion.png", "plots/train_batch.png"),
        *("evaluation/test/metrics.json", "evaluation/test/per_class.csv", "evaluation/test/predictions.csv"),
    }
    rows = table(run / "metrics.csv")
    assert len(rows) == 2
    assert {"train_class", "train_drloc", "val_top1", "lr", "weight_drloc"} <= rows[0].keys()


def test_train__stores_every_setting_with_its_origin(trained):
    config = yaml.safe_load((trained / "run" / "config.yaml").read_text())
    assert config["settings"].keys() == config["origin"].keys()
    assert config["origin"]["epochs"] == "flag"
    assert config["origin"]["lr"].startswith("auto: 0.001 at batch 64")
    assert config["origin"]["weight_decay"] == "default"
    assert config["settings"]["drloc_weight"] == 0.1


def test_train__the_test_part_is_stored_and_untouched_by_training(trained):
    rows = table(trained / "run" / "split.csv")
    assert len(rows) == 36
    parts = {part: {row["key"] for row in rows if row["split"] == part} for part in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == 36
    judged = {row["key"] for row in table(trained / "run/evaluation/test/predictions.csv")}
    assert judged == parts["test"]


def test_train__proposes_its_own_command_with_one_thing_changed(trained):
    steps = json.loads((trained / "run" / "summary.json").read_text())["next_steps"]
    again = next(step for step in steps if "--method supervised" in step).split("     #")[0].split()
    config = yaml.safe_load((trained / "run" / "config.yaml").read_text())
    flags = {name for name, origin in config["origin"].items() if origin == "flag"}
    named = {word.removeprefix("--").replace("-", "_") for word in again if word.startswith("--")}
    assert named == {"method", *flags} - {"data", "output"}
    assert again[again.index("--epochs") + 1] == str(config["settings"]["epochs"])


def test_weights__load_strictly_in_plain_timm(trained):
    import safetensors.torch

    card = json.loads((trained / "run" / "model.json").read_text())
    backbone = card["backbone"]
    model = timm.create_model(
        backbone["name"], num_classes=3, img_size=tuple(backbone["image_size"]), **backbone["arguments"]
    )
    model.load_state_dict(safetensors.torch.load_file(trained / "run" / "model.safetensors"))
