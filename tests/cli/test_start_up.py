"""Verbs that only print tables answer without torch or timm, and one prediction without what only training needs."""

import json
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

# All verbs in one process, since starting one takes longer than most verbs; what a verb loads is told for it alone.
SCRIPT = """
import contextlib, io, json, sys
sys.argv[0] = "paucal"
from paucal.cli.main import main
answers, loaded = [], set()
for words in json.loads(sys.argv[1]):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = main(words)
        except SystemExit as end:  # argparse's help
            code = end.code or 0
    heavy = {"torch", "torchvision", "timm", "lightning"} & set(sys.modules)
    answers.append([shown.getvalue(), code, sorted(heavy - loaded)])
    loaded |= heavy
print(json.dumps(answers))
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
# A mistyped flag is refused as quickly.
MISTAKES = [f"{verb} --no-such-flag" for verb in ("train", "pretrain", "eval", "predict", "label", "cache")]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int, list[str]]]:
    """What each verb prints, its exit code, and what it loads that it should not."""
    folder = tmp_path_factory.mktemp("runs")
    run = folder / "first"
    run.mkdir()
    (run / "config.yaml").write_text("model: vit_mini\ndata: digits\nseed: 0\n")
    verbs = [*MISTAKES, *VERBS]
    calls = json.dumps([verb.format(runs=folder).split() for verb in verbs])
    done = subprocess.run([sys.executable, "-c", SCRIPT, calls], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(zip(verbs, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("verb", VERBS)
def test_verb__prints_without_loading_torch(verb: str, answers: dict[str, tuple[str, int, list[str]]]):
    shown, code, loaded = answers[verb]
    assert VERBS[verb] in shown
    assert (code, loaded) == (0, [])


@pytest.mark.parametrize("verb", MISTAKES)
def test_mistyped_flag__is_refused_without_loading_torch(verb: str, answers: dict[str, tuple[str, int, list[str]]]):
    shown, code, loaded = answers[verb]
    assert shown.startswith("error: ")
    assert (code, loaded) == (2, [])


def test_module__answers_as_the_command_does_without_loading_torch():
    words = [sys.executable, "-X", "importtime", "-m", "paucal", "recipes"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
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
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    *shown, last = done.stdout.splitlines()
    assert "night" in "\n".join(shown), done.stderr
    assert last == "0 []"
