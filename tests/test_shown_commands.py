"""Every command that a page shows is run on small sets, or listed below with what it needs that is not here.

What trains is run up to its first step: the data is read and every setting is chosen and checked. The commands of the
README and of the page with every method train in `test_examples.py`, those of the stories in `test_stories.py`.
"""

import contextlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import shown_sets
from paucal.cli.main import main
from test_examples import ROOT, shown_commands

# The first reason that fits a command counts.
NEEDS = {
    r"--scale (full|small)|--device cuda|--img-size 384|-high-resolution": "a GPU",
    r"--on (slurm|ray)": "a cluster",
    r"--download|--push|hf:|s3://|--pretrained|--init timm": "a network",
    r"imagenet/|coco/|flowers102|svhn|cifar10 |/mnt/|project-1": "a set of the reader's",
    r"weights\.pth": "a published checkpoint",
    r"--format (openvino|html)": "a package; tests/export compares such files",
    r"--logger .*(mlflow|wandb)": "a package; tests/runner/loggers has these loggers",
    r"^weights (pack|add|remove)": "weights of the reader's; tests/verbs/weights packs and adds some",
    r"\.mp4|--watch|camera": "a video, a camera, a folder that fills; tests/verbs/predict/test_moving.py has them",
    r"^serve ": "a browser; tests/cli/test_cli_serve.py serves",
    r"^study (drloc-table-(9|10)|dhvt-table-3|esvit-table-2)": "minutes; tests/cli/test_cli_study*.py train",
}
TRAINS = ("train", "pretrain", "detect", "segment")


def reason_not_to_run(words: list[str]) -> str | None:
    """Return what a command needs that is not here, or None."""
    return next((reason for pattern, reason in NEEDS.items() if re.search(pattern, " ".join(words))), None)


def planned(words: list[str]) -> list[str]:
    """Return a command without what a shell does for it, that stops where training would begin."""
    words = list(words)
    if "--folds" in words:  # the first of them: no config is that of all
        place = words.index("--folds")
        words[place : place + 2] = ["--fold", f"1/{words[place + 1]}"]
    if words[0] in TRAINS and not {"--print-config", "--help"} & set(words):
        return [*words, "--print-config"]
    return [*words, "--jobs", "0"] if words[0] == "compare" else words


def run_command(words: list[str]) -> int:
    """Return the exit code of a command, of `--help` too."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@contextlib.contextmanager
def redirected(words: list[str]) -> Iterator[list[str]]:
    """Yield a command without its redirection, and write what it prints where that leads."""
    if ">" not in words:
        yield words
        return
    place = words.index(">")
    with Path(words[place + 1]).open("w") as file, contextlib.redirect_stdout(file):
        yield words[:place]


def remove_output(words: list[str]) -> None:
    """Make room for what a command writes, where another one of the page or the sandbox has written it."""
    name = words[2] if words[0] == "shard" else words[words.index("--output") + 1] if "--output" in words else ""
    if name and words[0] not in TRAINS:
        shutil.rmtree(name, ignore_errors=True)
        Path(name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shown")
    shown_sets.make_folder(root)
    return root


ADDITIONS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(shown_sets.DETECTS, shown_sets.add_boxes),
    **dict.fromkeys(shown_sets.SEGMENTS, shown_sets.add_masks),
    **dict.fromkeys(shown_sets.PREDICTS, partial(shown_sets.add_boxes, run="runs/2")),
    **dict.fromkeys(shown_sets.GUIDES, shown_sets.add_guide),
}
ELSEWHERE = re.compile(r"docs/(lab|stories)/.*|docs/every_method.md")  # in no test; test_stories.py; test_examples.py
COMMANDS = [(page, words) for page, words in shown_commands() if not ELSEWHERE.fullmatch(page)]
PAGES = sorted({page for page, words in COMMANDS if not reason_not_to_run(words)})


def test_reasons__are_all_needed():
    joined = [" ".join(words) for _, words in COMMANDS]
    for pattern in NEEDS:
        assert any(re.search(pattern, command) for command in joined), pattern


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands__of_a_page_work(page: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "here"
    shutil.copytree(folder, root)
    monkeypatch.chdir(root)
    if page in ADDITIONS:
        ADDITIONS[page](root)
    for words in [words for name, words in COMMANDS if name == page]:
        if reason_not_to_run(words) is None:
            remove_output(words)
            with redirected(words) as command:
                assert run_command(planned(command)) == 0, words


def agents_task() -> list[list[str]]:
    """Return the words of each line of the task that AGENTS.md shows whole."""
    [block] = re.findall(r"^```sh\n(.*?)^```", (ROOT / "AGENTS.md").read_text(), re.DOTALL | re.MULTILINE)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def test_agents__task_trains_predicts_and_exports():
    verbs = [words[1] for words in agents_task() if words[0] == "paucal"]
    assert verbs == ["check", "train", "predict", "export", "predict"]


@pytest.mark.slow
def test_agents__task_works_in_its_order(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("photos", "new_photos"):
        shutil.copytree(folder / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for program, *words in agents_task():
        if program == "paucal":
            with redirected(["30s" if word == "15m" else word for word in words]) as command:
                assert run_command(command) == 0, words
        else:  # shows a file
            assert Path(words[-1]).stat().st_size > 0, words
