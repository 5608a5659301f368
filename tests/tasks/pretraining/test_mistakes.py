"""Wrong input to pre-training: one sentence, exit code 2, nothing written."""

import pytest
import yaml

from paucal.cli.main import main
from paucal.types import UserError
from tasks.pretraining.short_runs import start


def test_command_line__refuses_mistakes_with_exit_code_2(pictures, tmp_path, capsys):
    output = str(tmp_path / "run")
    for words, sentence in (
        (["--modle", "x"], "did you mean --model"),
        (["--local-crops", "two"], "--local-crops"),
        (["--tasks", "cells"], "--tasks"),
        (["--recipe", "esvit"], "--recipe"),
        (["--batch-size", "500"], "a step needs 500 images"),
        (["--resume", output], "remove --output"),
    ):
        assert main(["pretrain", str(pictures), "--output", output, *words]) == 2
        message = capsys.readouterr().err.replace("\n", " ")
        assert sentence in message
        assert "Traceback" not in message
    assert not (tmp_path / "run").exists()
    assert main(["pretrain", "--resume", str(tmp_path)]) == 2
    assert "contains no run" in capsys.readouterr().err.replace("\n", " ")


def test_print_config__can_be_given_back(pictures, tmp_path, capsys):
    assert main(["pretrain", str(pictures), "--batch-size", "8", "--print-config"]) == 0
    text = capsys.readouterr().out
    assert "batch_size: 8  # flag" in text
    (tmp_path / "c.yaml").write_text(text)
    assert main(["pretrain", "--config", str(tmp_path / "c.yaml"), "--print-config"]) == 0
    again = yaml.safe_load(capsys.readouterr().out)
    assert again == yaml.safe_load(text)


WRONG = {
    "batch": ({"batch_size": 32}, "a step needs 32 images, but there are 24"),
    "crop": ({"model": "vit_tiny_patch16_224", "model_args": ["depth=1"], "local_size": [6]}, "does not run at"),
    "counts": ({"local_crops": [2, 2]}, "give a number of crops for each size"),
    "pair": ({"global_crops": 1, "local_crops": [0]}, "give no pair"),
    "scale": ({"local_scale": [0.5, 0.2]}, "two fractions of the area"),
    "mixup": ({"mixup": 0.8}, "no single match"),
    "recipe": ({"recipe": "esvit-swin-tine"}, "did you mean 'esvit-swin-tiny'"),
    "temperature": ({"teacher_temperature": 0.0}, "expected a number above 0"),
    "late": ({"region_after": 4}, "leaves no epoch of 4"),
    "contrary": ({"region_after": 2, "tasks": "view"}, "give only one of the two"),
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
    with pytest.raises(UserError, match="there is only 1 image"):
        start(folder, tmp_path / "run")


def test_monitor__of_one_class_is_refused_before_anything_is_written(pictures, tmp_path):
    folder = tmp_path / "labelled" / "only"
    folder.mkdir(parents=True)
    for path in pictures.rglob("*.png"):
        (folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="class"):
        start(pictures, tmp_path / "run", monitor=str(folder.parent))
    assert not (tmp_path / "run").exists()
