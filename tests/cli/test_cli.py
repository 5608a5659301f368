"""The command line as a person meets it: good runs, and every mistake as one sentence and exit code 2."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

from paucal.cli.main import main

TORCHRUN = ["--standalone", "--nproc-per-node=2", "-m", "paucal.cli.main"]
# Small enough for seconds: 16 pixels, one block.
QUICK = [
    "--img-size",
    "16",
    "--epochs",
    "2",
    "-j",
    "0",
    "--model",
    "vit_mini",
    "--model-args",
    "depth=1",
    "--seed",
    "1",
]


def make_photos(root: Path, classes: int = 3, each: int = 12) -> Path:
    """Class folders of noise around one grey level per class."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(each):
            pixels = generator.normal(60 + 70 * label, 20, (20, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run on a folder of photos beside it."""
    base = tmp_path_factory.mktemp("trained")
    photos = make_photos(base / "photos")
    assert main(["train", str(photos), *QUICK, "--output", str(base / "run")]) == 0
    return base


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def failure(capsys, *argv: str) -> str:
    """Run a command that must fail with exit code 2; return its one sentence."""
    assert main([str(word) for word in argv]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


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


def test_weights__load_strictly_in_plain_timm(trained):
    import safetensors.torch

    card = json.loads((trained / "run" / "model.json").read_text())
    backbone = card["backbone"]
    model = timm.create_model(
        backbone["name"], num_classes=3, img_size=tuple(backbone["image_size"]), **backbone["arguments"]
    )
    model.load_state_dict(safetensors.torch.load_file(trained / "run" / "model.safetensors"))


def test_eval__repeats_the_score_of_training(trained, capsys):
    before = json.loads((trained / "run/evaluation/test/metrics.json").read_text())
    assert main(["eval", str(trained / "run")]) == 0
    after = json.loads((trained / "run/evaluation/test/metrics.json").read_text())
    assert after["scores"]["top1"] == before["scores"]["top1"]
    assert after["scores"]["loss"]["value"] == pytest.approx(before["scores"]["loss"]["value"], rel=1e-5)
    assert main(["eval", str(trained / "run"), str(trained / "photos"), "--output", str(trained / "other")]) == 0
    whole = json.loads((trained / "other" / "metrics.json").read_text())
    assert whole["images"] == 36


def test_predict__gives_probabilities_for_files_folders_and_patterns(trained, capsys, tmp_path):
    photos = trained / "photos"
    words = [str(photos / "class0" / "0.png"), str(photos / "class1"), str(photos / "class2" / "1*.png")]
    assert main(["predict", str(trained / "run"), *words]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 1 + 12 + 3
    assert all(Path(row["path"]).is_file() for row in rows)
    for row in rows:
        shares = [float(row[f"p_class{k}"]) for k in range(3)]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert row["predicted"] == f"class{int(np.argmax(shares))}"
    output = tmp_path / "answers.json"
    assert main(["predict", str(trained / "run"), words[0], "--format", "json", "--output", str(output)]) == 0
    answer = json.loads(output.read_text())[0]
    assert answer["confidence"] == pytest.approx(float(rows[0]["confidence"]), rel=1e-4)


def test_predict__equals_the_python_interface(trained, capsys):
    import paucal

    path = trained / "photos" / "class1" / "3.png"
    model = paucal.load(trained / "run")
    shares = model.probabilities([Image.open(path)])
    assert shares.shape == (1, 3)
    main(["predict", str(trained / "run"), str(path)])
    row = next(csv.DictReader(capsys.readouterr().out.splitlines()))
    torch.testing.assert_close(
        shares[0], torch.tensor([float(row[f"p_class{k}"]) for k in range(3)]), rtol=1e-4, atol=1e-5
    )


def test_python_train__equals_the_command(trained, tmp_path):
    import paucal

    result = paucal.train(
        trained / "photos",
        img_size=[16],
        epochs=2,
        workers=0,
        model="vit_mini",
        model_args=["depth=1"],
        seed=1,
        output=str(tmp_path / "run"),
    )
    same = json.loads((trained / "run/evaluation/test/metrics.json").read_text())
    assert result.report.scores["top1"].value == same["scores"]["top1"]["value"]
    with pytest.raises(TypeError, match="no setting 'epoch'"):
        paucal.train("digits", epoch=3)


def test_train__is_reproducible(trained, tmp_path):
    photos = trained / "photos"
    assert main(["train", str(photos), *QUICK, "--output", str(tmp_path / "again")]) == 0
    first, second = (path / "model.safetensors" for path in (trained / "run", tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def test_train__config_and_flags_are_told_apart(trained, tmp_path, capsys):
    config = tmp_path / "settings.yaml"
    config.write_text("epochs: 1\nimg_size: [16]\nmodel_args: [depth=1]\nlr: 0.01\nworkers: 0\n")
    argv = [
        "train",
        str(trained / "photos"),
        "--config",
        str(config),
        "--lr",
        "0.002",
        "--output",
        str(tmp_path / "r"),
    ]
    assert main(argv) == 0
    stored = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert (stored["settings"]["epochs"], stored["origin"]["epochs"]) == (1, "config")
    assert (stored["settings"]["lr"], stored["origin"]["lr"]) == (0.002, "flag")


def test_resume__of_a_finished_run_is_refused(trained, capsys):
    assert "is finished" in failure(capsys, "train", "--resume", trained / "run")
    assert "leave out --lr" in failure(capsys, "train", "--resume", trained / "run", "--lr", "1")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "unknown verb 'trian' (did you mean 'train'?)"),
        (["train", "--bacth-size", "3"], "unknown argument '--bacth-size' (did you mean --batch-size"),
        (["train", "--epochs", "many"], "--epochs: expected a whole number, got 'many'"),
        (["train", "--epochs", "0"], "--epochs is 0, expected a number at least 1"),
        (["train", "--lr", "-1"], "--lr is -1.0, expected a number above 0"),
        (["train", "--lr", "nan"], "--lr: expected a number, got 'nan'"),
        (["train", "--img-size", "4"], "--img-size is '4', expected"),
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
        (["train", "--device", "tpu"], "--device is 'tpu', expected one of cpu, cuda, mps"),
        (["train", "--fraction", "0.5", "--few-labels", "3"], "give one of them"),
        (["train", "--rand-augment", "strong"], "rand_augment is 'strong'"),
        (["train", "--config", "nowhere.yaml"], "there is no such file"),
        (["train", "nowhere/"], "nowhere does not exist"),
        (["eval", "nowhere"], "'nowhere' does not exist: expected a run folder"),
        (["predict", "nowhere", "x.png"], "'nowhere' does not exist: expected a run folder"),
        (["models", "nothing_like_it"], "no model is called like"),
    ],
)
def test_mistakes__are_one_sentence(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in failure(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


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
    assert "class 'rare' has 1 images" in failure(capsys, "train", "lonely")
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
    assert "has 1 classes that the model does not know (class3)" in failure(capsys, "eval", trained / "run", photos)


def test_help__needs_no_arguments(capsys):
    assert main([]) == 0
    assert "paucal VERB" in capsys.readouterr().out
    assert main(["--version"]) == 0
    for verb in ("train", "eval", "predict", "models"):
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        assert f"paucal {verb}" in capsys.readouterr().out


def test_models__lists_ours_and_timms(capsys):
    assert main(["models", "*_mini"]) == 0
    assert "paucal" in capsys.readouterr().out
    assert main(["models", "resnet50"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("resnet50 "))
    assert row.split() == ["resnet50", "224x224", "25.56", "M", "4.09", "7x7", "timm", "0.1"]
    assert main(["models", "--ours"]) == 0
    assert "resnet50" not in capsys.readouterr().out


def test_train__proposes_its_own_command_with_one_thing_changed(trained):
    steps = json.loads((trained / "run" / "summary.json").read_text())["next_steps"]
    again = next(step for step in steps if "--method supervised" in step).split("     #")[0].split()
    config = yaml.safe_load((trained / "run" / "config.yaml").read_text())
    flags = {name for name, origin in config["origin"].items() if origin == "flag"}
    named = {word.removeprefix("--").replace("-", "_") for word in again if word.startswith("--")}
    assert named == {"method", *flags} - {"data", "output"}
    assert again[again.index("--epochs") + 1] == str(config["settings"]["epochs"])


def test_time_limit__stops_saves_and_says_how_to_go_on(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *QUICK, "--time-limit", "0.01s", "--output", str(run)]) == 130
    assert f"paucal train --resume {run}" in capsys.readouterr().out
    assert (run / "checkpoints" / "last.ckpt").exists()
    assert not (run / "summary.json").exists()
    assert main(["train", "--resume", str(run), "--time-limit", "1h"]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["settings"]["time_limit"], config["origin"]["time_limit"]) == ("1h", "flag of --resume")
    assert "--time-limit is 'soon', expected a time such as 45m" in failure(capsys, "train", "--time-limit", "soon")


def test_resume__refuses_what_would_change_the_result(tmp_path, capsys):
    run = tmp_path / "run"
    main(["train", *QUICK, "--time-limit", "0.01s", "--output", str(run)])
    capsys.readouterr()
    before = (run / "config.yaml").read_bytes()
    message = failure(capsys, "train", "--resume", run, "--lr", "1", "--epochs", "9")
    assert "leave out --epochs, --lr" in message or "leave out --lr, --epochs" in message
    assert "--workers" in message
    assert "--time-limit is 'soon'" in failure(capsys, "train", "--resume", run, "--time-limit", "soon")
    assert "--device is 'tpu'" in failure(capsys, "train", "--resume", run, "--device", "tpu")
    assert (run / "config.yaml").read_bytes() == before


def test_config_of_a_run__repeats_it(trained, tmp_path):
    config = trained / "run" / "config.yaml"
    assert main(["train", "--config", str(config), "--output", str(tmp_path / "again")]) == 0
    one, two = ((run / "model.safetensors").read_bytes() for run in (trained / "run", tmp_path / "again"))
    assert one == two


def test_print_config__prints_what_config_reads_and_writes_nothing(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(trained / "photos"), *QUICK, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "epochs: 2  # flag" in printed
    assert "lr: 0.0005  # auto: 0.001 at batch 64" in printed
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "printed.yaml").write_text(printed)
    assert main(["train", "--config", "printed.yaml", "--output", "run"]) == 0
    assert (tmp_path / "run/model.safetensors").read_bytes() == (trained / "run/model.safetensors").read_bytes()


def test_recipe__is_stored_as_the_origin(tmp_path, capsys):
    assert main(["train", *QUICK, "--recipe", "small-images", "--print-config"]) == 0
    assert "batch_size: 64  # recipe small-images" in capsys.readouterr().out
    assert main(["recipes"]) == 0
    assert "drloc-scratch-reference" in capsys.readouterr().out
    assert "did you mean 'small-images'" in failure(capsys, "train", "--recipe", "small-image")


def test_loss_options__without_the_loss_are_refused(capsys):
    message = failure(capsys, "train", "--method", "supervised", "--drloc-weight", "3")
    assert "--drloc-weight has no effect with --method supervised" in message


def test_resume__refuses_settings_of_another_type(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    (run / "summary.json").unlink()
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["settings"]["lr"] = "fast"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert "is not of this version of paucal" in failure(capsys, "train", "--resume", run)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
@pytest.mark.parametrize("launch", [["-m", "paucal.cli.main"], ["-m", "torch.distributed.run", *TORCHRUN]])
def test_two_processes__write_one_run_with_the_joint_batch(launch, strategy, tmp_path):
    import paucal

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    flags = ["--strategy", strategy]
    flags += ["--devices", "2"] if "torch.distributed.run" not in launch else []
    command = [sys.executable, *launch, "train", *QUICK, "--batch-size", "32", "--output", "run", *flags]
    done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy:") == 1
    run = tmp_path / "run"
    config = yaml.safe_load((run / "config.yaml").read_text())["settings"]
    assert (config["devices"], config["nodes"]) == (2, 1)
    assert config["strategy"] == ("ddp" if strategy == "auto" else "fsdp")
    rows = table(run / "metrics.csv")
    assert [float(row["step"]) for row in rows] == [1259 // 64, 2 * (1259 // 64)]
    assert len(table(run / "evaluation/test/predictions.csv")) == 359
    model = paucal.load(run)  # refuses weights that are not in one piece
    assert model.probabilities([Image.new("RGB", (16, 16))]).shape == (1, 10)


def test_predict__passes_over_what_a_pattern_matches_beside_images(trained, tmp_path, capsys):
    shutil.copytree(trained / "photos" / "class0", tmp_path / "mixed")
    (tmp_path / "mixed" / "notes.txt").write_text("not an image")
    (tmp_path / "mixed" / "more").mkdir()
    assert main(["predict", str(trained / "run"), str(tmp_path / "mixed" / "*")]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 12
    assert "2 matches of" in captured.err
    assert main(["predict", str(trained / "run"), str(trained / "photos" / "class*")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 36
    assert "none of which is an image" in failure(capsys, "predict", trained / "run", str(tmp_path / "mixed" / "*.txt"))


def test_strategy__that_does_not_fit_is_refused(trained, tmp_path, capsys):
    message = failure(capsys, "train", *QUICK, "--strategy", "fsdp")
    assert "--strategy fsdp says how several devices share a model and this run has one" in message
    both = ["--strategy", "fsdp", "--devices", "2", "--precision", "16-mixed"]
    assert "does not go with --strategy fsdp" in failure(capsys, "train", *QUICK, *both)
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    (run / "summary.json").unlink()
    assert "leave out --strategy" in failure(capsys, "train", "--resume", run, "--strategy", "ddp")


def test_nodes__without_a_launcher_are_refused(capsys):
    assert "--nodes is 2, and nothing has started" in failure(capsys, "train", *QUICK, "--nodes", "2")
