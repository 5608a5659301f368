"""The ledger of a run: records that survive a kill, and what is found when they are checked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from contracts import toys
from paucal.data.sampler import StepSampler
from paucal.runs import RunFolder
from paucal.runs.ledger import (
    LEDGER_FOLDER,
    LedgerWriter,
    StartRecord,
    image_hashes,
    next_start_number,
    read_records,
)
from paucal.training.ledger import Ledger
from paucal.types import UserError
from paucal.verbs.runs.verify import verify_run

TRAIN, BATCH, PER_PASS = 50, 12, 4  # two images are left over in each pass
KEYS = [f"cats/{number}.jpg" for number in range(60)]  # the last ten are held out
HASHES = image_hashes(KEYS)


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A finished run without a ledger."""
    rows = [f"{key},0,cat,{'train' if place < TRAIN else 'val'}" for place, key in enumerate(KEYS)]
    (tmp_path / "split.csv").write_text("\n".join(["key,label,class,split", *rows]) + "\n")
    (tmp_path / "config.yaml").write_text("verb: train\nsettings: {seed: 0}\norigin: {}\n")
    (tmp_path / "summary.json").write_text("{}")
    return tmp_path


def train(run: Path, first: int, last: int, processes: int, change=lambda step, images: images) -> None:
    """Write the records of a start that makes steps from `first` until before `last`."""
    number = next_start_number(run)
    for rank in range(processes):
        writer = LedgerWriter(run, StartRecord(number, rank, processes, first, BATCH, PER_PASS))
        sampler = StepSampler(np.arange(TRAIN), BATCH // processes, last, 0, first, rank, processes)
        for step, batch in enumerate(sampler, first):
            writer.write(step, change(step, HASHES[[key.index for key in batch]]))
        writer.close()


def test_verify__a_run_that_was_killed_and_went_on_with_other_processes_is_clean(run):
    train(run, 0, 6, 2)
    train(run, 4, 7, 1)  # two steps were lost with the killed process
    train(run, 7, 12, 3)
    verdict = verify_run(run)
    assert verdict.clean
    assert (verdict.steps, verdict.draws, verdict.passes, verdict.left_over) == (12, 144, 3, 2)
    assert (verdict.repeated_steps, verdict.unsaved_steps, verdict.processes) == (2, 0, (2, 1, 3))
    assert "missing 0, doubled 0" in verdict.lines()[-1]
    assert verdict.lines()[1].startswith("started 3 times, with 2, 1, 3 processes;")
    assert replace(verdict, processes=(1,)).lines()[1].startswith("started 1 time, with 1 process;")


def test_verify__steps_after_the_newest_state_do_not_count_yet(run, monkeypatch):
    train(run, 0, 6, 2)
    (run / "summary.json").unlink()
    (run / "checkpoints").mkdir()
    torch.save({"callbacks": {"RunKeeper": {"step": 4}}}, run / "checkpoints" / "last.ckpt")
    verdict = verify_run(run)
    assert (verdict.steps, verdict.unsaved_steps, verdict.clean) == (4, 2, True)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda step, images: np.append(images[:-1], images[0]), {"doubled": 8}),  # in each step and process
        (lambda step, images: images[:-1] if step == 2 else images, {"missing": 2}),
        (lambda step, images: np.append(images[:-1], HASHES[-1]) if step == 3 else images, {"held_out": 2}),
        (lambda step, images: np.append(images[:-1], np.uint64(7)) if step == 0 else images, {"unknown": 2}),
    ],
)
def test_verify__names_what_is_wrong(change, found, run):
    train(run, 0, 4, 2, change)
    verdict = verify_run(run)
    assert not verdict.clean
    found = {"missing": 0, "held_out": 0, "unknown": 0, **found}
    assert {name: getattr(verdict, name) for name in found} == found


def test_verify__a_step_that_no_start_made_is_missing(run):
    train(run, 0, 4, 1)
    train(run, 5, 8, 1)
    assert verify_run(run).missing == BATCH


def test_verify__needs_a_ledger_from_the_first_step(run):
    with pytest.raises(UserError, match="no ledger from its first step on: train with --ledger"):
        verify_run(run)
    train(run, 4, 8, 1)
    with pytest.raises(UserError, match="no ledger from its first step on"):
        verify_run(run)


def test_records__end_before_what_a_kill_cut_off(run):
    train(run, 0, 3, 1)
    file = next((run / LEDGER_FOLDER).iterdir())
    content = file.read_bytes()
    record = 16 + 8 * BATCH
    for cut in (1, record - 1, record):
        file.write_bytes(content[:-cut])
        assert [read.step for read in read_records(run)] == [0, 1]
    file.write_bytes(content[:10])
    assert list(read_records(run)) == []
    assert next_start_number(run) == 1


class Stop(Callback):
    """Ends a run like a kill after a step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 5:
            raise InterruptedError


def test_training__records_the_images_of_each_step(tmp_path):
    images, batch, accumulate = 64, 8, 2
    keys = [f"{number}.png" for number in range(images)]

    def fit(*more) -> None:
        callbacks = [Ledger(tmp_path, keys, batch * accumulate, 4), *more]
        toys.train(
            toys.make("per_block"), tmp_path, epochs=2, batch=batch, accumulate=accumulate, callbacks=callbacks,
            save_every=3,
        )  # fmt: skip

    with pytest.raises(InterruptedError):
        fit(Stop())
    fit()
    records = list(read_records(tmp_path))
    assert [(record.start.number, record.step) for record in records[::2]] == [
        *((0, step) for step in range(5)),
        *((1, step) for step in range(3, 8)),  # from the state at step 3
    ]
    sampler = StepSampler(np.arange(images), batch, 16, 3, accumulate=accumulate)
    hashes = image_hashes(keys)
    planned = [hashes[[key.index for key in draw]].tolist() for draw in sampler]
    assert [record.hashes.tolist() for record in records] == [*planned[:10], *planned[6:]]
    assert RunFolder(tmp_path).last.exists()
