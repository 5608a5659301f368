"""Runs that stop and go on, and settings that are stored, printed and read again."""

import shutil

import yaml

from cli.calls import QUICK, failure
from paucal.cli.main import main


def test_resume__of_a_finished_run_is_refused(trained, capsys):
    assert "is finished" in failure(capsys, "train", "--resume", trained / "run")
    assert "remove --lr" in failure(capsys, "train", "--resume", trained / "run", "--lr", "1")


def test_time_limit__stops_saves_and_says_how_to_go_on(trained, tmp_path, capsys):
    run, photos = tmp_path / "run", str(trained / "photos")
    assert main(["train", photos, *QUICK, "--time-limit", "0.01s", "--output", str(run)]) == 130
    assert f"paucal train --resume {run}" in capsys.readouterr().out
    assert (run / "checkpoints" / "last.ckpt").exists()
    assert not (run / "summary.json").exists()
    assert main(["train", "--resume", str(run), "--time-limit", "1h"]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["settings"]["time_limit"], config["origin"]["time_limit"]) == ("1h", "flag of --resume")
    message = failure(capsys, "train", photos, *QUICK, "--time-limit", "soon")
    assert "--time-limit is 'soon', expected a time such as 10m" in message


def test_resume__refuses_what_would_change_the_result(trained, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", str(trained / "photos"), *QUICK, "--time-limit", "0.01s", "--output", str(run)]) == 130
    capsys.readouterr()
    before = (run / "config.yaml").read_bytes()
    message = failure(capsys, "train", "--resume", run, "--lr", "1", "--epochs", "9")
    assert "remove --epochs, --lr" in message or "remove --lr, --epochs" in message
    assert "--workers" in message
    assert "--time-limit is 'soon'" in failure(capsys, "train", "--resume", run, "--time-limit", "soon")
    assert "--device is 'tpu'" in failure(capsys, "train", "--resume", run, "--device", "tpu")
    assert (run / "config.yaml").read_bytes() == before


def test_resume__refuses_settings_of_another_type(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    (run / "summary.json").unlink()
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["settings"]["lr"] = "fast"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert "lr cannot be 'fast'" in failure(capsys, "train", "--resume", run)


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


def test_recipe__is_stored_as_the_origin(trained, capsys):
    assert main(["train", str(trained / "photos"), *QUICK, "--recipe", "small-images", "--print-config"]) == 0
    assert "batch_size: 64  # recipe small-images" in capsys.readouterr().out
    assert main(["recipes"]) == 0
    assert "drloc-scratch-reference" in capsys.readouterr().out
    assert "did you mean 'small-images'" in failure(capsys, "train", "--recipe", "small-image")
