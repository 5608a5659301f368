"""Pre-training runs from beginning to end, on a folder of a few unlabelled pictures."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import timm
import torch
import yaml
from lightning.pytorch import Callback
from PIL import Image

import paucal
from paucal.cli.main import main
from paucal.evaluation.collapse import Verdict
from paucal.recipes.pretraining.launch import Stopped, pretrain_run, resume_pretraining
from paucal.recipes.pretraining.settings import PretrainSettings
from paucal.recipes.pretraining.watching import gentler
from paucal.recipes.voice import Quiet
from paucal.runs import RunFolder, read_weights
from paucal.training import Plan
from paucal.types import UserError

SMALL = {
    "model": "swin_tiny_patch4_window7_224",
    "model_args": ["patch_size=4", "embed_dim=16", "depths=[2, 2]", "num_heads=[2, 2]", "window_size=4"],
    "img_size": [32],
    "local_crops": [2],
    "local_size": [16],
    "out_dim": 32,
    "hidden_dim": 24,
    "bottleneck_dim": 8,
    "epochs": 4,
    "batch_size": 8,
    "drop_path": 0.1,
    "tasks": "view+region",
    "device": "cpu",
}


class StopAfter(Callback):
    """Asks for a stop, as a signal would, before a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step >= self.step - 1:
            next(c for c in trainer.callbacks if type(c).__name__ == "StopSignal").received = True


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """24 pictures in folders of any depth, without labels."""
    root, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(24):
        folder = root / "some" / ("deep/er" if number % 2 else "")
        folder.mkdir(parents=True, exist_ok=True)
        small = draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((48, 40)).save(folder / f"{number}.png")
    return root


def start(pictures, output, callbacks=(), **changes):
    settings = PretrainSettings(data=str(pictures), output=str(output), **{**SMALL, **changes})
    return pretrain_run(settings, dict.fromkeys([*SMALL, *changes, "data", "output"], "flag"), Quiet(), callbacks)


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def state(run):
    return torch.load(RunFolder(run).last, weights_only=True)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory):
    result = start(pictures, tmp_path_factory.mktemp("runs") / "one")
    assert not isinstance(result, Stopped)
    return result


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
    shape = {"patch_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
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
    assert not any("test images" in remark for remark in summary_of(result.run)["remarks"])
    # Images under the same names of the same folder, which the start has seen.
    unlabelled = start(tmp_path / "photos", tmp_path / "start", epochs=1)
    again = paucal.train(
        tmp_path / "photos", init=str(unlabelled.run), method="supervised", epochs=1, output=str(tmp_path / "again")
    )
    remarks = " ".join(summary_of(again.run)["remarks"])
    assert "the start has learned from 4 of the 4 test images, without labels" in remarks


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


def test_frozen_features__are_judged_on_the_images_it_has_seen_without_labels(pictures, tmp_path, capsys):
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        folder = tmp_path / "data" / ("test" if number % 3 == 0 else "train") / ("a", "b")[number // 3 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    run = start(tmp_path / "data", tmp_path / "run", epochs=1).run
    for words in ([str(tmp_path / "data")], []):
        assert main(["eval", str(run), *words, "--protocol", "knn", "--output", str(tmp_path / f"e{len(words)}")]) == 0
        assert "the table lies in" in capsys.readouterr().out


def test_test_images__of_the_data_are_left_out(pictures, tmp_path):
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        folder = tmp_path / "data" / ("test" if number % 3 == 0 else "train") / "any"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    stopped = start(tmp_path / "data", tmp_path / "run", callbacks=[StopAfter(1)])
    rows = (stopped.run / "split.csv").read_text().splitlines()[1:]
    assert all(row.endswith("unused") == row.startswith("test/") for row in rows)
    assert sum(row.endswith("unused") for row in rows) == 8
    assert "8 images of the data's own test part are left out" in (stopped.run / "train.log").read_text()


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_classifying__with_it_is_refused_with_what_to_do_instead(verb, finished, pictures, capsys):
    assert main([verb, str(finished.run), str(pictures)]) == 2
    assert "has no classifier" in capsys.readouterr().err.replace("\n", " ")


def test_command_line__refuses_mistakes_with_exit_code_2(pictures, tmp_path, capsys):
    output = str(tmp_path / "run")
    for words, sentence in (
        (["--modle", "x"], "did you mean --model"),
        (["--local-crops", "two"], "--local-crops"),
        (["--tasks", "cells"], "--tasks"),
        (["--recipe", "esvit"], "--recipe"),
        (["--batch-size", "500"], "a step takes 500 images"),
        (["--resume", output], "leave out --output"),
    ):
        assert main(["pretrain", str(pictures), "--output", output, *words]) == 2
        message = capsys.readouterr().err.replace("\n", " ")
        assert sentence in message
        assert "Traceback" not in message
    assert not (tmp_path / "run").exists()
    assert main(["pretrain", "--resume", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err.replace("\n", " ")


def test_print_config__can_be_given_back(pictures, tmp_path, capsys):
    assert main(["pretrain", str(pictures), "--batch-size", "8", "--print-config"]) == 0
    text = capsys.readouterr().out
    assert "batch_size: 8  # flag" in text
    (tmp_path / "c.yaml").write_text(text)
    assert main(["pretrain", "--config", str(tmp_path / "c.yaml"), "--print-config"]) == 0
    again = yaml.safe_load(capsys.readouterr().out)
    assert again == yaml.safe_load(text)


@pytest.mark.parametrize("step", [2, 7])
def test_resuming__equals_not_stopping_bit_for_bit(step, finished, pictures, tmp_path):
    stopped = start(pictures, tmp_path / "run", [StopAfter(step)])
    assert isinstance(stopped, Stopped)
    assert "paucal pretrain --resume" in str(stopped)
    resumed = resume_pretraining(stopped.run, Quiet(), {"workers": 1})
    assert same(state(finished.run)["state_dict"], state(resumed.run)["state_dict"])
    with pytest.raises(UserError, match="is finished"):
        resume_pretraining(stopped.run, Quiet())


def moments(run):
    """Return the optimizer's first moments by the names of their parameters."""
    stored = state(run)["optimizer_states"][0]
    numbers = [number for group in stored["param_groups"] for number in group["params"]]
    names = [name for group in stored["param_groups"] for name in group["names"]]
    return {name: stored["state"][number]["exp_avg"] for name, number in zip(names, numbers, strict=True)
            if number in stored["state"]}  # fmt: skip


def test_region_task__joins_with_the_moments_kept(pictures, tmp_path):
    seen = {}

    class Look(Callback):
        def on_train_start(self, trainer, pl_module):
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

    alone = start(pictures, tmp_path / "alone", tasks="view", epochs=4, callbacks=[StopAfter(6)])
    assert isinstance(alone, Stopped)
    result = start(pictures, tmp_path / "joined", region_after=2, callbacks=[Look()])
    assert not isinstance(result, Stopped)
    before, kept = state(alone.run)["state_dict"], moments(alone.run)
    assert not any("region" in name for name in before)
    assert all(torch.equal(seen["weights"][k.removeprefix("objective.")], v) for k, v in before.items())
    assert same(kept, seen["moments"])
    rows = RunFolder(result.run).read_rows()
    assert ["train_region" in row for row in rows] == [False, False, True, True]
    assert rows[-1]["weight_view"] == rows[-1]["weight_region"] == 0.5
    assert rows[0]["weight_view"] == 1.0
    assert "objective.student.heads.region.mlp.0.weight" in state(result.run)["state_dict"]


def sick_at(epoch, times):
    """A judge that finds a collapse at an epoch, so many times."""
    left = [times]

    def judge(rows, **_):
        if rows and len(rows) >= epoch and left[0]:
            left[0] -= 1
            return Verdict("uniform output", "uniform output: all alike.", "lower the temperature.")
        return None

    return judge


def test_stop__ends_a_collapsed_run_and_says_why(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.recipes.pretraining.watcher.judge", sick_at(2, 9))
    stopped = start(pictures, tmp_path / "run", on_collapse="stop")
    assert isinstance(stopped, Stopped)
    assert stopped.step == 6
    log = (stopped.run / "train.log").read_text()
    assert "stopped because of uniform output: all alike." in log
    assert "lower the temperature." in log


def test_warn__goes_on_and_the_report_says_it(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.recipes.pretraining.watcher.judge", sick_at(2, 99))
    result = start(pictures, tmp_path / "run")
    assert result.verdict.kind == "uniform output"
    assert "uniform output" in (result.run / "report.html").read_text()


def test_rollback__goes_back_changes_the_settings_and_finishes(pictures, tmp_path, monkeypatch):
    # A healthy row is judged twice, for a verdict and for first signs; the third epoch is sick, and only once.
    monkeypatch.setattr("paucal.recipes.pretraining.watcher.judge", sick_at(3, 1))
    monkeypatch.setattr("paucal.recipes.plans.Plan", partial(Plan, save_seconds=0.0))
    result = start(pictures, tmp_path / "run", on_collapse="rollback", lr=1e-3, momentum=0.99)
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    settings, origin = config["settings"], config["origin"]
    assert config["rollbacks"] == [{"epoch": 3.0, "kind": "uniform output", "sentence": "uniform output: all alike."}]
    assert (settings["lr"], settings["teacher_temperature"]) == (1e-3, pytest.approx(0.03))
    assert origin["teacher_temperature"] == "rollback 1, after uniform output"
    assert [row["epoch"] for row in RunFolder(result.run).read_rows()] == [1, 2, 3, 4]
    assert "back to the last healthy state" in (result.run / "train.log").read_text()
    assert summary_of(result.run)["verdicts"][0]["kind"] == "uniform output"
    assert summary_of(result.run)["rollbacks"] == 1


def test_rollback__pulls_away_from_what_was_found():
    settings = PretrainSettings(lr=1e-3, momentum=0.99, teacher_temperature=0.04)
    assert gentler(settings, "uniform output")["teacher_temperature"] < 0.04
    constant = gentler(settings, "constant output")
    assert constant["teacher_temperature"] > 0.04
    for changes in (constant, gentler(settings, "divergence")):
        assert (changes["lr"], changes["momentum"]) == (5e-4, pytest.approx(0.995))


def test_verbs__do_not_resume_each_others_runs(finished, pictures, tmp_path):
    stopped = start(pictures, tmp_path / "run", [StopAfter(2)])
    from paucal.recipes.launch import resume_run

    with pytest.raises(UserError, match="was made by 'paucal pretrain'"):
        resume_run(stopped.run, Quiet())


WRONG = {
    "batch": ({"batch_size": 32}, "a step takes 32 images and there are 24"),
    "crop": ({"model": "vit_tiny_patch16_224", "model_args": None, "local_size": [6]}, "does not run at"),
    "counts": ({"local_crops": [2, 2]}, "give one number for each size"),
    "pair": ({"global_crops": 1, "local_crops": [0]}, "make no pair"),
    "scale": ({"local_scale": [0.5, 0.2]}, "two shares of the area"),
    "mixup": ({"mixup": 0.8}, "no one counterpart"),
    "recipe": ({"recipe": "esvit-swin-tine"}, "did you mean 'esvit-swin-tiny'"),
    "temperature": ({"teacher_temperature": 0.0}, "expected a number above 0"),
    "late": ({"region_after": 4}, "leaves none of the 4 epochs"),
    "contrary": ({"region_after": 2, "tasks": "view"}, "give one of them"),
    "blur": ({"blur": [2.0]}, "--blur"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings__are_refused_before_anything_is_written(name, pictures, tmp_path):
    changes, words = WRONG[name]
    with pytest.raises(UserError, match=words):
        start(pictures, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_one_image__is_too_few(pictures, tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "a.png").write_bytes(next(pictures.rglob("*.png")).read_bytes())
    with pytest.raises(UserError, match="there is 1 image"):
        start(folder, tmp_path / "run")


def test_monitor__of_one_class_is_refused_before_anything_is_written(pictures, tmp_path):
    folder = tmp_path / "labelled" / "only"
    folder.mkdir(parents=True)
    for path in pictures.rglob("*.png"):
        (folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="class"):
        start(pictures, tmp_path / "run", monitor=str(folder.parent))
    assert not (tmp_path / "run").exists()


def test_settings__of_a_run_can_be_used_again(finished):
    stored = yaml.safe_load((finished.run / "config.yaml").read_text())["settings"]
    assert replace(PretrainSettings(**stored), output=None).model == "esvit_swin_tiny_patch4_window7_224"
