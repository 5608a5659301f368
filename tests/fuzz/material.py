"""Sound things that calls are made with and that none may change: `python -m fuzz.material FOLDER` makes them."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch

from cli.calls import QUICK, SMALL, TINY, make_photos, make_scenes
from paucal.cli.main import main
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.console import LoggedConsole
from paucal.runner.familiar import load_familiarity
from paucal.runs import RunFolder
from tasks.detection.made import write_coco

LEARNER = ["--model", "lvvit_t", "--model-args", "embed_dim=16", "depth=1", "num_heads=2", "stem_width=8"]
MAPS = ["-j", "0", "--img-size", "32", *LEARNER, "--method", "token-labeling", "--epochs", "1"]


def make_material(folder: Path) -> None:
    """Make photographs, runs, maps, weights, lists and odd files below a folder."""
    make_photos(folder / "photos")
    make_photos(folder / "more", each=4, seed=6)
    for part in ("train", "val", "test"):
        make_photos(folder / "nested" / part, each=4)
    _lists(folder)
    _odd(folder / "odd")
    photos = str(folder / "photos")
    stopped = [*TINY, "--epochs", "100000", "--time-limit", "1s", "--output"]
    _call("train", photos, *QUICK, "--output", str(folder / "run"))
    _call("train", photos, *stopped, str(folder / "stopped"), expected=130)
    _call("pretrain", photos, *TINY, "--epochs", "1", "--output", str(folder / "pre"))
    _call("pretrain", photos, *stopped, str(folder / "prestopped"), expected=130)
    write_coco(folder / "boxes")
    scenes = str(make_scenes(folder / "scenes", 6))
    _call("segment", scenes, *SMALL, "--epochs", "1", "--crops", "1", "--output", str(folder / "areas"))
    teacher = ["--teacher", str(folder / "run"), "--min-accuracy", "0", "--img-size", "32"]
    _call("label", photos, *teacher, "--output", str(folder / "maps"))
    _unfinished(folder / "maps", folder / "unfinished")
    _call("export", str(folder / "run"), "--images", "4", "--output", str(folder / "exported"))
    _served(folder / "run")
    _answers(folder, folder / "answers")
    _weights(folder / "weights", folder / "run" / "model.safetensors")
    _parquet(folder / "parquet", folder / "photos")


def _call(*argv: str, expected: int = 0) -> None:
    code = main(argv)
    assert code == expected, f"{code} of paucal {' '.join(argv)}"


def _lists(folder: Path) -> None:
    images = sorted(path.relative_to(folder) for path in (folder / "photos").rglob("*.png"))
    (folder / "list.txt").write_text("".join(f"{path} {path.parent.name[-1]}\n" for path in images))
    (folder / "names.txt").write_text("class0\nclass1\n")
    (folder / "real.json").write_text(json.dumps([[0]] * len(images)))
    (folder / "settings.yaml").write_text("epochs: 1\nmodel: vit_mini\nimg_size: [16]\nworkers: 0\n")


def _odd(folder: Path) -> None:
    folder.mkdir()
    (folder / "link").symlink_to("../run")
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("../none")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "null").symlink_to("/dev/null")
    os.mkfifo(folder / "fifo")
    (folder / "empty").touch()
    (folder / "nothing").mkdir()
    for name in ("garbage", "garbage.pth"):
        (folder / name).write_bytes(bytes(range(256)) * 9)
    here = os.getcwd()
    os.chdir(folder)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.chdir(here)


def _unfinished(maps: Path, folder: Path) -> None:
    shutil.copytree(maps, folder)
    with (folder / "done.npy").open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\0" * 5)


def _served(run: Path) -> None:
    """Let a run hold what its first call of `serve` measures, so that others need not write into it."""
    assert load_familiarity(RunFolder(run), load_trained(run), LoggedConsole()) is not None


def _answers(material: Path, folder: Path) -> None:
    """Stop a call that predicts after its third batch, and keep what it has left."""
    asked, whole = [], TrainedModel.probabilities

    def probabilities(self: TrainedModel, images: Any) -> torch.Tensor:
        asked.append(len(images))
        if len(asked) > 3:
            raise KeyboardInterrupt
        return whole(self, images)

    made, here = material.parent / "stopped-answers", os.getcwd()
    made.mkdir()
    os.chdir(made)  # calls are made in such a folder, and name the material from there
    with mock.patch.object(TrainedModel, "probabilities", probabilities):
        words = ["--output", "a.csv", "--features", "a.parquet", "-b", "5"]
        _call("predict", "../material/run", "../material/photos", *words, expected=130)
    os.chdir(here)
    (made / "a.csv.part").rename(folder)
    made.rmdir()


def _weights(folder: Path, deployed: Path) -> None:
    folder.mkdir()
    state = safetensors.torch.load_file(deployed)
    safetensors.torch.save_file(state, folder / "plain.safetensors")
    torch.save(state, folder / "plain.pth")
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)
    prefixed = {f"module.backbone.{name}": value for name, value in state.items()}
    torch.save({"teacher": prefixed, "student": prefixed, "epoch": 3}, folder / "several.pth")


def _parquet(folder: Path, photos: Path) -> None:
    folder.mkdir()
    files = sorted(photos.rglob("*.png"))
    table = pa.table(
        {
            "image": [{"bytes": file.read_bytes(), "path": file.name} for file in files],
            "label": [int(file.parent.name[-1]) for file in files],
        }
    )
    pq.write_table(table, folder / "train-00000-of-00001.parquet")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True)
    make_material(Path(sys.argv[1]).resolve())
