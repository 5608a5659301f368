"""Verbs that only print tables answer without torch or timm, and one prediction without what only training needs."""

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_predict__loads_neither_the_trainer_nor_scikit_learn():
    program = "import paucal, sys; paucal.load; import paucal.verbs.predict.files as _; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert {"lightning", "sklearn", "matplotlib.pyplot"}.isdisjoint(done.stdout.split())
