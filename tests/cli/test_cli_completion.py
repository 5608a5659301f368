"""`paucal completion`, by completing in a shell."""

import shutil
import subprocess

import pytest

from cli.calls import call, failure
from fuzz.flags import flag_names
from paucal.cli.main import COMMAND_SUMMARIES
from paucal.recipes import table as recipes

ASK = """
source "$0"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
"$(complete -p paucal | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" "$1" "${@: -1}" "${@:$#-1:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Completes the last of some words as bash does when Tab is pressed."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash on this machine")
    script = tmp_path_factory.mktemp("completion") / "paucal.bash"
    with pytest.MonkeyPatch.context() as patch, script.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert call("completion", "bash") == 0

    def ask(*words):
        made = subprocess.run(
            ["bash", "-c", ASK, str(script), "paucal", *map(str, words)], capture_output=True, text=True, check=True
        )
        assert made.stderr == ""
        return sorted(made.stdout.split())

    return ask


def test_bash__completes_verbs_flags_and_values(complete, tmp_path):
    assert complete("") == sorted(COMMAND_SUMMARIES)
    assert complete("pre") == ["predict", "pretrain"]
    for verb in ("train", "predict", "serve"):
        assert set(flag_names(verb)) <= set(complete(verb, "--"))
    assert complete("predict", "--on-bad-image", "") == ["refuse", "skip"]
    assert complete("train", "--batch-size", "") == ["auto"]
    assert complete("predict", "--device", "c") == ["cpu", "cuda"]
    assert {"dhvt_tiny_cifar_patch4"} == set(complete("train", "--model", "dhvt_tiny_cifar_patch4"))
    assert complete("train", "--method", "") == ["drloc", "relabel", "supervised", "token-labeling"]
    assert complete("train", "--add", "d") == ["distillation", "drloc"]
    assert complete("pretrain", "--method", "le") == ["lejepa"]
    assert complete("detect", "--head", "") == ["2fc", "4conv1fc"]
    assert set(complete("train", "--recipe", "")) == set(recipes.RECIPES)
    assert set(complete("detect", "--recipe", "cascade")) == {"cascade-coco-1x", "cascade-coco-3x"}
    assert set(complete("segment", "--recipe", "upernet")) == {"upernet-ade20k", "upernet-ade20k-lvvit"}
    tiny = {"esvit-swin-tiny", "esvit-swin-tiny-1024", "esvit-swin-tiny-w14"}
    assert set(complete("pretrain", "--recipe", "esvit-swin-t")) == tiny
    (tmp_path / "photo.jpg").touch()
    for before in (["predict"], ["predict", "runs/1"], ["predict", "runs/1", "a.jpg", "--output"]):
        assert complete(*before, tmp_path / "ph") == [str(tmp_path / "photo.jpg")]


def test_other_shells__get_a_script_and_an_unknown_one_a_sentence(capsys):
    assert call("completion", "zsh") == 0
    assert capsys.readouterr().out.startswith("#compdef paucal")
    assert "error: SHELL: expected one of 'bash', 'zsh'" in failure(capsys, "completion", "sh")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells__read_their_script(tmp_path, capsys, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    assert call("completion", shell) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    read = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=True)
    assert read.stderr == ""
    if shell == "fish":  # which completes without a terminal
        ask = 'source $argv[1]; complete -C "paucal pre"; complete -C "paucal predict --on-bad-image "'
        found = subprocess.run([shell, "-c", ask, str(script)], capture_output=True, text=True, check=True)
        assert [line.split()[0] for line in found.stdout.splitlines()] == ["predict", "pretrain", "refuse", "skip"]
