"""Verbs that only print tables answer without torch or timm, and one prediction without what only training needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from paucal.backbones.spec import BackboneSpec
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import save_trained
from paucal.runs import RunFolder

SCRIPT = """
import sys
sys.argv[0] = "paucal"
from paucal.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:  # argparse's help
    code = end.code or 0
print(code, sorted({"torch", "torchvision", "timm", "lightning"} & set(sys.modules)))
"""
VERBS = {
    "--help": "train a model on a folder of images",
    "train --help": "--batch-size",
    "models vit_mini": "1.22 M",
    "recipes": "upernet-ade20k",
    "study list": "drloc-table-9",
    "study show drloc-table-9": "recipe",
    "runs {runs}": "first",
    "cache": "decoded images",
    "weights list": "tf_efficientnet_lite0.in1k",
    "completion bash": "swin_tiny_patch4_window7_224",
}


@pytest.mark.parametrize("verb", VERBS)
def test_verb__prints_without_loading_torch(verb: str, tmp_path: Path):
    run = tmp_path / "first"
    run.mkdir()
    (run / "config.yaml").write_text("model: vit_mini\ndata: digits\nseed: 0\n")
    words = verb.format(runs=tmp_path).split()
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=120)
    *shown, last = done.stdout.splitlines()
    assert VERBS[verb] in "\n".join(shown), done.stderr
    assert last == "0 []"


def test_module__answers_as_the_command_does_without_loading_torch():
    words = [sys.executable, "-X", "importtime", "-m", "paucal", "recipes"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert VERBS["recipes"] in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "paucal.cli.main" in imported
    assert not {"torch", "timm"} & imported


def test_predict__loads_neither_the_trainer_nor_scikit_learn(tmp_path: Path):
    spec = BackboneSpec("vit_mini", 2, 3, (16, 16))
    preprocessing = Preprocessing((16, 16), 1.0, "bicubic", (0.5,) * 3, (0.25,) * 3)
    save_trained(RunFolder(tmp_path), spec.build().model, ModelCard(spec, ("day", "night"), preprocessing))
    Image.new("RGB", (20, 16)).save(tmp_path / "photo.png")
    program = """
import sys
from paucal.cli.main import main
code = main(["predict", sys.argv[1], sys.argv[2]])
print(code, sorted({"lightning", "sklearn", "matplotlib.pyplot"} & set(sys.modules)))
"""
    words = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "photo.png")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    *shown, last = done.stdout.splitlines()
    assert "night" in "\n".join(shown), done.stderr
    assert last == "0 []"
