"""Every mistake is one sentence and exit code 2, and leaves no file behind."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from cli.calls import QUICK, failure, make_photos
from paucal.cli.main import main
from paucal.tasks.train import train
from paucal.types import UserError


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "unknown command 'trian' (did you mean train"),
        (["train", "", ""], "unknown argument ''"),
        (["train", "--bacth-size", "3"], "unknown argument '--bacth-size' (did you mean --batch-size"),
        (["train", "--epochs", "many"], "--epochs: expected a whole number, got 'many'"),
        (["pretrain", "--epochs", "0"], "--epochs is 0, expected a number between 1 and 1,000,000"),
        (["train", "--epochs", "-1"], "--epochs is -1, expected a number between 0 and 1,000,000"),
        (["train", "--epochs", "0"], "--epochs 0 keeps the linear probe of pretrained weights, but this run"),
        (["train", "--time", "soon"], "--time is 'soon', expected a time such as 10m"),
        (["train", "--time", "1m", "--epochs", "2"], "--time 1m and --epochs 2 both set the length of the run"),
        (["train", "--lr", "-1"], "--lr is -1.0, expected a number above 0"),
        (["train", "--lr", "nan"], "--lr: expected a number, got 'nan'"),
        (["train", "--img-size", "4"], "--img-size is '4', expected"),
        (["train", "--image-size", "4"], "error: --image-size is '4', expected"),
        (["train", "--image_size=many"], "error: --image-size: expected a whole number, got 'many'"),
        (["train", "--imgsz", "--epochs", "3"], "--img-size/--imgsz/--image-size: expected at least one argument"),
        (["train", "--imgsz", "4", "--img-size", "5"], "error: --img-size is '5', expected"),
        (["train", "-b0"], "error: -b is 0, expected a number between 1 and"),
        (
            ["detect", "x", "--backbone-rate", "11"],
            "error: --backbone-rate is 11.0, expected a number",
        ),
        (
            ["train", "--method", "drlok"],
            "--method: 'drlok' is unknown, expected one of supervised, drloc, token-labeling, relabel; did you",
        ),
        (["train", "--add", "x"], "--add: 'x' is unknown"),
        (
            ["train", "--drloc-mode", "l2"],
            "--drloc-mode: expected one of 'l1', 'signed', 'ce', 'reg', got 'l2'",
        ),
        (["train", "--model", "swin_tyni_patch4_window7_224"], "swin_tiny_patch4_window7_224"),
        (["train", "--model-args", "depth"], "'depth' is not of the form NAME=VALUE"),
        (["train", "--model-args", "dpeth=3"], "dpeth"),
        (["train", "--model", "vit_mini", "--model-args", "depth=0"], "has no layers: use at least 1 layer"),
        (["train", "--model", "vit_mini", "--model-args", "embed_dim=0"], "vit_mini cannot be built with"),
        (
            ["train", "--model", "resnet18", "--img-size", "64", "--model-args", "layers=[]"],
            "resnet18 does not support images of 64x64 pixels",
        ),
        (["train", "--model", "vit_mini", "--model-args", "drop_path_rate=x"], "invalid combination of arguments"),
        (["train", "--mixup", "1e-320"], "--mixup is 1e-320, expected 0 for none or a number between 0.001 and 1000"),
        (["train", "--cutmix", "1e300"], "--cutmix is 1e+300, expected 0 for none or a number between 0.001 and 1000"),
        (["train", "--rand-augment", "rand-m9-n99999999999"], "in which n is 1e+11; expected a number from 1 to 15"),
        (["train", "--rand-augment", "rand-x"], "'x' is not valid"),
        (["train", "--rand-augment", "rand-m99"], "in which m is 99; expected a number from 0 to 10"),
        (["train", "--min-lr", "0.1", "--lr", "0.01"], "--min-lr is 0.1, above --lr 0.01"),
        (["train", "--min-lr", "1"], "--min-lr is 1, above --lr "),
        (["train", "--warmup-epochs", "9", "--epochs", "3"], "--warmup-epochs is 9 and --epochs 3"),
        (["pretrain", "--warmup-epochs", "9", "--epochs", "3"], "--warmup-epochs is 9 and --epochs 3"),
        (["pretrain", "--min-lr", "1"], "--min-lr is 1, above --lr "),
        (["pretrain", "--mixup", "1e-320", "--tasks", "view"], "--mixup is 1e-320, expected 0 for none or a number"),
        (["train", "--freeze", "-5", "--model", "resnet18"], "--freeze is -5, but resnet18 has"),
        (["train", "--drloc-pool", "99999999999"], "--drloc-pool is 99999999999, expected a number between 1 and 4096"),
        (["train", "--drloc-pool", "-1"], "--drloc-pool is -1, expected a number between 1 and 4096"),
        (["train", "--device", "tpu"], "--device is 'tpu', expected one of cpu, cuda, mps"),
        (["train", "--fraction", "0.5", "--few-labels", "3"], "give only one of the two"),
        (["train", "--rand-augment", "strong"], "rand_augment is 'strong'"),
        (["train", "--config", "nowhere.yaml"], "'nowhere.yaml' does not exist"),
        (["train", "nowhere/"], "nowhere does not exist"),
        (["eval", "nowhere"], "'nowhere' does not exist: expected a run folder"),
        (["predict", "nowhere", "x.png"], "'nowhere' does not exist: expected a run folder"),
        (["models", "nothing_like_it"], "no model name matches"),
    ],
)
def test_mistakes__are_one_sentence(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in failure(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


WORDS = ["model", "init", "init-network", "recipe", "method", "add", "device", "time-limit", "output", "classes"]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        *((["train", f"--{word}", ""], f"--{word}") for word in (*WORDS, "rand-augment", "labels", "resume", "config")),
        *((["pretrain", f"--{word}", " "], f"--{word}") for word in ("model", "time-limit", "monitor", "data-root")),
        (["train", "--model-args", "depth=1", ""], "--model-args"),
        (["train", ""], "DATA"),
        (["eval", ""], "MODEL"),
        (["eval", "vit_mini", "x", "--protocol", "knn", "--model", ""], "--model"),
        (["predict", "", "x.png"], "RUN"),
        (["predict", "x", "x.png", ""], "PATHS"),
        (["label", "x", "--output", "y", "--teacher", ""], "--teacher"),
        (["label", "x", "--output", "y", "--from-published", ""], "--from-published"),
        (["models", ""], "PATTERN"),
    ],
)
def test_words__that_are_empty_are_refused(capsys, tmp_path, monkeypatch, argv, name):
    monkeypatch.chdir(tmp_path)
    assert f"error: {name} is empty: give a" in failure(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


def test_words__that_are_empty_in_a_config_are_refused(capsys, tmp_path):
    (tmp_path / "c.yaml").write_text("model: ''\n")
    assert "--model is empty: give a value, or leave --model out" in failure(
        capsys, "train", "--config", tmp_path / "c.yaml"
    )


def test_words__that_are_empty_are_refused_from_python():
    with pytest.raises(UserError, match="--time-limit is empty: give a value, or leave --time-limit out"):
        train("digits", time_limit="")


def test_mistakes__in_the_data(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    make_photos(tmp_path / "one", classes=1)
    lonely = make_photos(tmp_path / "lonely", classes=2)
    (lonely / "rare").mkdir()
    Image.new("RGB", (20, 20)).save(lonely / "rare" / "only.png")
    before = sorted(tmp_path.rglob("*"))
    assert "empty" in failure(capsys, "train", "empty")
    assert "only one class ('class0')" in failure(capsys, "train", "one")
    assert "class 'rare' has 1 image to" in failure(capsys, "train", "lonely")
    assert sorted(tmp_path.rglob("*")) == before


def test_mistakes__an_unreadable_image_is_named_or_skipped(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "photos")
    (photos / "class1" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    assert "class1/broken.jpg" in failure(capsys, "train", "photos", *QUICK)
    assert main(["train", "photos", *QUICK, "--on-bad-image", "skip", "--output", "run"]) == 0
    assert "class1/broken.jpg" in capsys.readouterr().out
    assert "broken.jpg" not in (tmp_path / "run" / "split.csv").read_text()


def test_mistakes__in_a_config(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("epoch: 3\n")
    assert "unknown key 'epoch' in the config (did you mean epochs" in failure(capsys, "train", "--config", "bad.yaml")
    Path("bad.yaml").write_text("epochs: [1, 2]\n")
    assert "--epochs: expected a whole number" in failure(capsys, "train", "--config", "bad.yaml")
    Path("bad.yaml").write_text("backbone_rate: 11\n")  # an earlier name of backbone_lr
    assert "error: --backbone-rate is 11.0, expected" in failure(capsys, "detect", "x", "--config", "bad.yaml")
    Path("bad.yaml").write_text("a: [")
    failure(capsys, "train", "--config", "bad.yaml")


def test_mistakes__an_existing_run_is_kept(capsys, trained):
    before = {path: path.stat().st_mtime_ns for path in (trained / "run").rglob("*")}
    message = failure(capsys, "train", trained / "photos", *QUICK, "--output", trained / "run")
    assert "exists already" in message
    # Also with --overwrite nothing is removed before everything else is known to be right.
    failure(capsys, "train", trained / "photos", "--model", "nonsense", "--overwrite", "--output", trained / "run")
    assert {path: path.stat().st_mtime_ns for path in (trained / "run").rglob("*")} == before


def test_eval__of_classes_the_model_does_not_know(capsys, trained, tmp_path):
    photos = make_photos(tmp_path / "photos", classes=4)
    assert "has 1 class that the model does not know (class3)" in failure(capsys, "eval", trained / "run", photos)


def test_loss_options__without_the_loss_are_refused(capsys):
    message = failure(capsys, "train", "--method", "supervised", "--drloc-weight", "3")
    assert "--drloc-weight has no effect with --method supervised" in message


def test_nodes__without_a_launcher_are_refused(capsys):
    assert "--nodes is 2, but the processes on the other machines" in failure(capsys, "train", *QUICK, "--nodes", "2")


def test_strategy__that_does_not_fit_is_refused(trained, tmp_path, capsys):
    message = failure(capsys, "train", *QUICK, "--strategy", "fsdp")
    assert "--strategy fsdp is for several devices, but this run uses one device" in message
    both = ["--strategy", "fsdp", "--devices", "2", "--precision", "16-mixed"]
    assert "is not supported for --strategy fsdp" in failure(capsys, "train", *QUICK, *both)
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    (run / "summary.json").unlink()
    assert "remove --strategy" in failure(capsys, "train", "--resume", run, "--strategy", "ddp")
