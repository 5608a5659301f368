"""Runs of every verb that are killed at random moments and go on, as in a job that is started again and again.

More kills than the slow tests make, and runs that are written to object storage, from which the shards are read too
(AWS_ENDPOINT_URL and the keys say where it is; `python benchmarks/scale.py --serve --port 9000` is such a server):

    PYTHONPATH=tests python -m cli.killing --kills 100 --seed 1
    PYTHONPATH=tests python -m cli.killing --kills 100 --seed 1 --storage s3://runs --verbs train shards pretrain
"""

import argparse
import inspect
import json
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from cli.calls import SMALL, TINY, make_photos, make_scenes
from paucal.runner.stored_runs import StoredRun
from paucal.runs import RunFolder
from paucal.verbs.runs.verify import Verdict, verify_run
from tasks.detection.made import write_voc

EPOCHS = 12
SAVE_EVERY = 3  # steps, instead of 500, so that a kill in a short run leaves a state to go on from
TIMES = ("seconds",)  # columns of metrics.csv that differ between any two runs
PATIENCE = 300.0  # seconds without an end after which a start counts as hanging
PRETRAIN = shlex.split(
    "-j 0 --model-args depth=1 embed_dim=16 num_heads=2 --out-dim 32 --head-norm none --local-crops 1"
)
DETECTOR = shlex.split(
    "-j 0 --init none --pyramid-channels 16 --head-dim 16 --regions 32 --proposals 64 -b 2 --steps 60"
)
COMMANDS = {
    "train": ["train", *TINY, "-b", "64", "--epochs", str(EPOCHS)],
    "shards": ["train", "SHARDS", *TINY, "-b", "16", "--epochs", str(4 * EPOCHS)],
    "stored": ["train", *TINY, "-b", "64", "--epochs", str(EPOCHS)],  # written to storage: a folder, by fsspec
    "pretrain": ["pretrain", "digits", *PRETRAIN, "-b", "128", "--epochs", str(EPOCHS)],
    "segment": ["segment", "scenes", *SMALL, "--crops", "2", "--epochs", str(4 * EPOCHS), "--lr", "0.01"],
    "detect": ["detect", "boxes", "--model", "resnet10t", "--img-size", "96", *DETECTOR],
}
COMMON = ["--seed", "1", "--device", "cpu", "--ledger"]
# Imported once, not at every start. (The server of Python 3.11 does not know where the tests are.)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("paucal.cli.training", "paucal.methods.training_settings", "paucal.methods.pretraining_settings"),
        *("paucal.tasks.detection.job", "paucal.tasks.segmentation.job"),
        *("sklearn.datasets", "torch._dynamo", "matplotlib.pyplot"),
    ]
)


@dataclass
class Tally:
    """What became of a run that was killed.

    Attributes:
        kills: Kills by signal.
        starts: Starts of the command, the first included.
        anew: Starts that had no saved state to go on from.
        machines_lost: Kills after which the local copies of the run and of the shards were removed.
        problems: Sentences on starts that failed or hung.
    """

    kills: dict[str, int] = field(default_factory=lambda: {"SIGKILL": 0, "SIGTERM": 0})
    starts: int = 0
    anew: int = 0
    machines_lost: int = 0
    problems: list[str] = field(default_factory=list)


def make_images(folder: Path) -> None:
    """Make the images that the commands read; they name them relative to the folder."""
    make_photos(folder / "photos", 3, 40)
    make_scenes(folder / "scenes")
    write_voc(folder / "boxes", 24)
    os.environ["PAUCAL_IMAGE_CACHE"] = str(folder / "cache")
    call(folder, ["shard", "photos", "shards", "--shard-images", "20"])


def call(folder: Path, words: list[str], storage: str | None = None) -> None:
    """Let a command end, undisturbed."""
    process = start(folder, words, storage)
    process.join()
    assert process.exitcode == 0, (folder / "log.txt").read_text()[-2000:]


def start(folder: Path, words: list[str], storage: str | None = None) -> Any:
    """Start a command in a process of its own."""
    words = [f"{storage or f'file://{folder}'}/shards" if word == "SHARDS" else word for word in words]
    process = PROCESSES.Process(target=_command, args=(folder, words))
    process.start()
    return process


def _command(folder: Path, words: list[str]) -> None:
    import torch

    from paucal.cli.main import main
    from paucal.training.plan import Plan

    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    os.chdir(folder)
    os.environ["PAUCAL_IMAGE_CACHE"] = str(folder / "cache")
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    usual = inspect.signature(Plan).parameters["save_every"].default
    Plan.__init__.__defaults__ = tuple(SAVE_EVERY if v == usual else v for v in Plan.__init__.__defaults__ or ())
    sys.exit(main(words))


def disturb(
    folder: Path, verb: str, name: str, kills: int, dice: random.Random, longest: float, storage: str | None = None
) -> Tally:
    """Kill a run at `kills` random moments of its starts, and let the last start end.

    Args:
        folder: Folder of the images and runs.
        verb: Key of `COMMANDS`.
        name: Name of the run folder.
        kills: Number of kills; fewer if the run ends before.
        dice: Source of the moments and signals.
        longest: Seconds after a start at which it is killed at the latest.
        storage: Folder on object storage that has the shards and gets the run; None for files of this machine.
    """
    tally, run = Tally(), RunFolder(folder / name)
    url = f"file://{folder}/storage/{name}" if verb == "stored" else None
    url = url if storage is None else f"{storage}/{name}"
    while not run.finished and len(tally.problems) < 3:
        resumed = run.last.exists() if url is None else run.config.exists()
        where = ["--output", name, "--overwrite"] if url is None else ["--output", url]
        words = [COMMANDS[verb][0], "--resume", url or name] if resumed else [*COMMANDS[verb], *COMMON, *where]
        process = start(folder, words, storage)
        tally.starts += 1
        tally.anew += not resumed and tally.starts > 1
        process.join(dice.uniform(0, longest) if sum(tally.kills.values()) < kills else PATIENCE)
        if process.exitcode is None:
            kind = dice.choice(list(tally.kills))
            tally.kills[kind] += 1
            os.kill(process.pid, signal.Signals[kind])
            process.join(PATIENCE)
            if storage is not None and dice.random() < 0.5:  # the next machine has nothing of this one
                shutil.rmtree(folder / "cache", ignore_errors=True)  # it may not exist yet
                tally.machines_lost += 1
        if process.exitcode is None:
            process.kill()
            process.join()
            tally.problems.append(f"start {tally.starts} did not end in {PATIENCE:.0f} seconds")
        elif process.exitcode not in (0, 130, -signal.SIGKILL):
            last = (folder / "log.txt").read_text().strip().splitlines()[-1]
            tally.problems.append(f"start {tally.starts} ended with {process.exitcode}: {last}")
        if url is not None and StoredRun(url).manifest() is not None:
            StoredRun(url).fetch(run.path)
    return tally


def differences(whole: Path, run: Path) -> list[str]:
    """Return what a run that was killed has otherwise than one that was not: weights, scores, images of steps."""
    found = []
    if (whole / "model.safetensors").read_bytes() != (run / "model.safetensors").read_bytes():
        found.append("weights")
    kept = [
        [{k: v for k, v in row.items() if k not in TIMES} for row in RunFolder(path).read_rows()]
        for path in (whole, run)
    ]
    if kept[0] != kept[1]:
        found.append("metrics")
    one, two = verify_run(whole), verify_run(run)
    if not two.clean or counts(one) != counts(two):
        found.append(f"images ({' '.join(two.lines())})")
    return found


def counts(verdict: Verdict) -> tuple[int, ...]:
    """Return the numbers of a verdict that kills must not change."""
    return verdict.steps, verdict.draws, verdict.passes, verdict.images, verdict.left_over


def main() -> None:
    """Kill runs of every verb until there were enough kills, and print what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each", type=int, default=5, help="kills of one run at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbs", nargs="+", default=list(COMMANDS))
    parser.add_argument("--storage", help="address of a folder on object storage, such as s3://bucket")
    options = parser.parse_args()
    folder, dice, done, storage = Path(tempfile.mkdtemp()), random.Random(options.seed), 0, options.storage
    make_images(folder)
    if storage is not None:
        files, root = fsspec.core.url_to_fs(storage)
        files.makedirs(root, exist_ok=True)
        files.put(f"{folder}/shards", f"{root}/shards", recursive=True)
    longest = {}
    for verb in options.verbs:
        begin = time.monotonic()
        call(folder, [*COMMANDS[verb], *COMMON, "--output", f"{storage or '.'}/{verb}-whole"], storage)
        longest[verb] = time.monotonic() - begin
        if storage is not None:
            StoredRun(f"{storage}/{verb}-whole").fetch(folder / f"{verb}-whole")
    turn = 0
    while done < options.kills:
        verb = options.verbs[turn % len(options.verbs)]
        kills = min(options.each, options.kills - done)
        tally = disturb(folder, verb, f"{verb}-{turn}", kills, dice, longest[verb], storage)
        done, turn = done + sum(tally.kills.values()), turn + 1
        run = folder / f"{verb}-{turn - 1}"
        wrong = tally.problems or differences(folder / f"{verb}-whole", run)
        lost = verify_run(run).repeated_steps if not tally.problems else None
        print(json.dumps({"verb": verb, **vars(tally), "steps_made_again": lost, "differences": wrong}), flush=True)
        if not wrong:
            shutil.rmtree(run)


if __name__ == "__main__":
    main()
