"""Pre-training runs from beginning to end, on a folder of a few unlabelled pictures."""

import json
from dataclasses import replace

import pytest
import timm
import torch
import yaml
from lightning.pytorch import Callback

import paucal
from cli.calls import table
from paucal.cli.main import main
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.pretraining import assembly
from paucal.tasks.pretraining.job import PretrainingJob
from paucal.types import UserError
from tasks.pretraining.short_runs import StopAfter, same, start, state, summary_of


def test_run__leaves_everything_and_says_how_it_went(finished):
    names = {"config.yaml", "env.json", "split.csv", "metrics.csv", "model.safetensors", "model.json", "report.html"}
    assert names <= {path.name for path in finished.run.iterdir()}
    assert {path.name for path in (finished.run / "plots").iterdir()} >= {"curves.png", "health.png", "train_batch.png"}
    assert not (finished.run / "checkpoints" / "best.ckpt").exists()
    columns = (finished.run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train_view", "train_region", "teacher_entropy", "region_centre_norm", "effective_rank"} <= set(columns)
    config = yaml.safe_load((finished.run / "config.yaml").read_text())
    assert config["verb"] == "pretrain"
    assert config["origin"]["lr"].startswith("auto: ")
    summary = json.loads((finished.run / "summary.json").read_text())
    assert summary["crops"] == "2 crops of 32x32 and 2 crops of 16x16"
    assert "--init" in summary["next_steps"][0]


def test_model__is_the_last_teacher_and_timm_loads_it_strictly(finished):
    weights = read_weights(RunFolder(finished.run).weights)
    prefix = "objective.teacher.backbone.model."
    teacher = {k.removeprefix(prefix): v for k, v in state(finished.run)["state_dict"].items() if k.startswith(prefix)}
    assert all(torch.equal(weights[name], teacher[name]) for name in weights)
    shape = {"patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4}
    plain = timm.create_model("swin_tiny_patch4_window7_224", img_size=32, num_classes=0, **shape)
    plain.load_state_dict(weights, strict=True)


def test_training__starts_from_it(finished, pictures, tmp_path):
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        folder = tmp_path / "photos" / ("a", "b")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    result = paucal.train(
        tmp_path / "photos", init=str(finished.run), method="supervised", epochs=1, output=str(tmp_path / "tuned")
    )
    report = json.loads((result.run / "init.json").read_text())
    assert report["share"] == 1.0
    assert report["fresh"] == []
    # The start has seen these images under other names, and then under the same.
    assert (
        "the initial weights were trained on 4 of the 4 test images, without labels"
        in summary_of(result.run)["remarks"]
    )
    unlabelled = start(tmp_path / "photos", tmp_path / "start", epochs=1)
    again = paucal.train(
        tmp_path / "photos", init=str(unlabelled.run), method="supervised", epochs=1, output=str(tmp_path / "again")
    )
    remarks = " ".join(summary_of(again.run)["remarks"])
    assert "the initial weights were trained on 4 of the 4 test images, without labels" in remarks


def test_start__goes_into_student_and_teacher(finished, pictures, tmp_path):
    seen = {}

    class Look(Callback):
        def on_train_start(self, trainer, pl_module):
            seen.update({name: value.clone() for name, value in pl_module.objective.state_dict().items()})

    result = start(pictures, tmp_path / "run", init=str(finished.run), callbacks=[Look(), StopAfter(1)])
    assert isinstance(result, Stopped)
    weights = read_weights(RunFolder(finished.run).weights)
    for network in ("student", "teacher"):
        assert all(torch.equal(seen[f"{network}.backbone.model.{name}"], value) for name, value in weights.items())


def test_timm_weights__are_asked_for_under_the_name_that_timm_has_them_by(pictures, tmp_path, monkeypatch):
    asked = []

    def remember(start, model, objective, classes):
        asked.append((start.facts.where, model))

    monkeypatch.setattr(assembly, "load_initial_weights", remember)
    start(pictures, tmp_path / "run", init="timm", callbacks=[StopAfter(1)])
    assert asked == [("timm's weights", "swin_tiny_patch4_window7_224")]


def test_monitor__is_found_again_from_elsewhere(pictures, tmp_path, monkeypatch):
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        folder = tmp_path / "labelled" / ("a", "b")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    stopped = start(pictures, tmp_path / "run", monitor="labelled", callbacks=[StopAfter(1)])
    stored = yaml.safe_load((stopped.run / "config.yaml").read_text())["settings"]["monitor"]
    assert stored == str(tmp_path / "labelled")


def test_frozen_features__are_judged_on_the_images_it_has_seen_without_labels(pictures, tmp_path, capsys):
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        folder = tmp_path / "data" / ("test" if number % 3 == 0 else "train") / ("a", "b")[number // 3 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    run = start(tmp_path / "data", tmp_path / "run", epochs=1).run
    for words in ([str(tmp_path / "data")], []):
        assert main(["eval", str(run), *words, "--protocol", "knn", "--output", str(tmp_path / f"e{len(words)}")]) == 0
        assert "the table and its figures are in" in capsys.readouterr().out


def test_test_images__of_the_data_are_left_out(pictures, tmp_path):
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        folder = tmp_path / "data" / ("test" if number % 3 == 0 else "train") / "any"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    stopped = start(tmp_path / "data", tmp_path / "run", callbacks=[StopAfter(1)])
    rows = table(stopped.run / "split.csv")
    assert all((row["split"] == "unused") == row["key"].startswith("test/") for row in rows)
    assert sum(row["split"] == "unused" for row in rows) == 8
    assert "8 images of the declared test part are left out" in (stopped.run / "train.log").read_text()


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_classifying__with_it_is_refused_with_what_to_do_instead(verb, finished, pictures, capsys):
    assert main([verb, str(finished.run), str(pictures)]) == 2
    assert "has no classifier" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.slow), 7])
def test_resuming__equals_not_stopping_bit_for_bit(step, finished, pictures, tmp_path):
    stopped = start(pictures, tmp_path / "run", [StopAfter(step)])
    assert isinstance(stopped, Stopped)
    assert "paucal pretrain --resume" in str(stopped)
    resumed = resume(PretrainingJob(), stopped.run, SilentConsole(), {"workers": 1})
    assert same(state(finished.run)["state_dict"], state(resumed.run)["state_dict"])
    with pytest.raises(UserError, match="is finished"):
        resume(PretrainingJob(), stopped.run, SilentConsole())


def moments(run):
    """Return the optimizer's first moments by the names of their parameters."""
    stored = state(run)["optimizer_states"][0]
    numbers = [number for group in stored["param_groups"] for number in group["params"]]
    names = [name for group in stored["param_groups"] for name in group["names"]]
    return {name: stored["state"][number]["exp_avg"] for name, number in zip(names, numbers, strict=True)
            if number in stored["state"]}  # fmt: skip


def test_region_task__joins_with_the_moments_kept(pictures, tmp_path):
    seen, deadlines = {}, []

    class Look(Callback):
        def on_train_start(self, trainer, pl_module):
            deadlines.append(pl_module.plan.deadline)
            if trainer.global_step:
                weights = {k: v.clone() for k, v in pl_module.objective.state_dict().items()}
                optimizer = trainer.optimizers[0]
                named = zip(
                    [n for g in optimizer.param_groups for n in g["names"]],
                    [p for g in optimizer.param_groups for p in g["params"]],
                    strict=True,
                )
                seen.update(weights=weights, moments={n: optimizer.state[p]["exp_avg"].clone() for n, p in named
                                                      if p in optimizer.state})  # fmt: skip

    alone = start(pictures, tmp_path / "alone", tasks="view", epochs=3, callbacks=[StopAfter(6)])
    assert isinstance(alone, Stopped)
    result = start(pictures, tmp_path / "joined", epochs=3, region_after=2, time_limit="10h", callbacks=[Look()])
    assert not isinstance(result, Stopped)
    assert deadlines[0] == deadlines[1] is not None  # the time allowed is that of the whole command
    before, kept = state(alone.run)["state_dict"], moments(alone.run)
    assert not any("region" in name for name in before)
    assert all(torch.equal(seen["weights"][k.removeprefix("objective.")], v) for k, v in before.items())
    assert same(kept, seen["moments"])
    rows = RunFolder(result.run).read_rows()
    assert ["train_region" in row for row in rows] == [False, False, True]
    assert rows[-1]["weight_view"] == rows[-1]["weight_region"] == 0.5
    assert rows[0]["weight_view"] == 1.0
    assert "objective.student.heads.region.mlp.0.weight" in state(result.run)["state_dict"]


def test_verbs__do_not_resume_each_others_runs(finished, pictures, tmp_path):
    stopped = start(pictures, tmp_path / "run", [StopAfter(2)])
    from paucal.runner.life import resume
    from paucal.tasks.classification.job import TrainingJob

    with pytest.raises(UserError, match="was made by 'paucal pretrain'"):
        resume(TrainingJob(), stopped.run, SilentConsole())


def test_settings__of_a_run_can_be_used_again(finished):
    stored = yaml.safe_load((finished.run / "config.yaml").read_text())["settings"]
    assert replace(PretrainSettings(**stored), output=None).model == "esvit_swin_tiny_patch4_window7_224"


def test_resize__comes_before_the_crops_and_is_stored_with_the_model(pictures, tmp_path, monkeypatch):
    asked = []
    made = assembly.build_crop_transforms
    monkeypatch.setattr(
        assembly, "build_crop_transforms", lambda *args, **named: (asked.append(named), made(*args, **named))[1]
    )
    run = start(pictures, tmp_path / "run", resize="letterbox", epochs=1).run
    assert {named["resize"] for named in asked} == {"letterbox"}
    card = json.loads((run / "model.json").read_text())
    assert (card["preprocessing"]["resize"], card["preprocessing"]["crop_ratio"]) == ("letterbox", 1.0)
