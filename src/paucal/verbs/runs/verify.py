"""`paucal.verify_run`: check in a run's ledger that each pass used each training image once, and no other images.

The ledger records the images in each batch of the run.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from paucal.data.splits.split_csv import read_rows
from paucal.runs import open_run
from paucal.runs.ledger import LEDGER_FOLDER, PassRecord, StartRecord, image_hashes, read_records
from paucal.types import UserError
from paucal.wording import counted


@dataclass(frozen=True)
class Verdict:
    """The result of checking a run's ledger.

    Attributes:
        steps: Number of optimizer steps that contribute to the model.
        draws: Number of images in the batches of these steps, counting repeated uses.
        passes: Number of complete passes over the training images.
        images: Number of training images of the run.
        left_over: Number of images that each pass leaves out, since they do not fill the last batch.
        missing: Number of images that were missing from incomplete batches.
        doubled: Number of uses of training images beyond the permitted uses per pass.
        held_out: Number of uses of validation or test images.
        unknown: Number of uses of images that are not in `split.csv`.
        repeated_steps: Number of steps that were repeated because a process was killed before saving a checkpoint.
        unsaved_steps: Number of steps after the latest checkpoint; a resumed run repeats these steps.
        processes: Number of processes at each start of the run.
        counts_uses: Whether a pass must use all images equally often; False for balanced sampling.
    """

    steps: int
    draws: int
    passes: int
    images: int
    left_over: int
    missing: int
    doubled: int
    held_out: int
    unknown: int
    repeated_steps: int
    unsaved_steps: int
    processes: tuple[int, ...]
    counts_uses: bool = True

    @property
    def clean(self) -> bool:
        """Whether every batch was complete, no image was used too often, and only training images were used."""
        return not (self.missing or self.doubled or self.held_out or self.unknown)

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        starts = ", ".join(map(str, self.processes))
        noun = "process" if {*self.processes} == {1} else "processes"
        use = "each image at most once per pass" if self.counts_uses else "images repeated to balance the classes"
        return [
            f"{counted(self.steps, 'step')} with {counted(self.draws, 'image')} ({use}; {self.images} to train, "
            f"{counted(self.passes, 'whole pass', 'whole passes')}, {self.left_over} left over in each)",
            f"started {counted(len(self.processes), 'time')}, with {starts} {noun}; "
            f"{counted(self.repeated_steps, 'lost step')} repeated, {self.unsaved_steps} not yet saved",
            f"missing {self.missing}, doubled {self.doubled}, of validation or test {self.held_out}, "
            f"unknown {self.unknown}",
        ]


def verify_run(run: str | os.PathLike[str]) -> Verdict:
    """Check the ledger of a run that was trained with `--ledger`; the same as `paucal runs verify`.

    Args:
        run: Run folder.

    Raises:
        UserError: The run does not exist, or its ledger does not start at the first step.
    """
    folder = open_run(os.fspath(run))
    records = list(read_records(folder.path))
    if not records or min(record.start.step for record in records) > 0:
        raise UserError(f"{str(folder.path)!r} has no {LEDGER_FOLDER} from its first step on: train with --ledger.")
    starts = {record.start.number: record.start for record in records}
    kept = list(kept_records(records, starts))
    steps_made = len({record.step for record in kept})
    # The steps that contribute to the model: up to the end of the run or to the last checkpoint.
    saved_steps = max(record.step for record in kept) + 1
    if not folder.finished:
        from paucal.training import checkpoint_step  # imported only when used, since the import takes seconds

        saved_steps = min(saved_steps, checkpoint_step(folder.last)) if folder.last.exists() else 0
    saved = sorted((record for record in kept if record.step < saved_steps), key=lambda record: record.step)
    settings = folder.read_yaml(folder.config.name).get("settings") or {}
    rows = read_rows(folder.split)
    hashes = image_hashes(row["key"] for row in rows)
    is_train = np.asarray([row["split"] == "train" for row in rows])
    train_hashes, other_hashes = hashes[is_train], hashes[~is_train]
    first_start = next(iter(starts.values()))
    batch_size, steps_per_pass = first_start.batch, first_start.steps_per_pass
    is_balanced = settings.get("sampling") == "balanced"
    max_uses = repeats = int(settings.get("repeats") or 1)
    if len(train_hashes) < batch_size:
        max_uses = repeats * -(-batch_size * steps_per_pass // (len(train_hashes) * repeats))
    draws = n_surplus = n_held_out = n_unknown = 0
    for _, pass_records in groupby(saved, key=lambda record: record.step // steps_per_pass):
        images = np.concatenate([record.hashes for record in pass_records])
        draws += len(images)
        n_held_out += int(np.isin(images, other_hashes).sum())
        n_unknown += int((~np.isin(images, hashes)).sum())
        if not is_balanced:
            n_surplus += int(np.maximum(np.unique(images, return_counts=True)[1] - max_uses, 0).sum())
    return Verdict(
        steps=saved_steps,
        draws=draws,
        passes=saved_steps // steps_per_pass,
        images=len(train_hashes),
        left_over=max(0, len(train_hashes) - batch_size * steps_per_pass // repeats),
        missing=batch_size * saved_steps - draws,
        doubled=n_surplus,
        held_out=n_held_out,
        unknown=n_unknown,
        repeated_steps=len({(record.start.number, record.step) for record in records}) - steps_made,
        unsaved_steps=len({record.step for record in kept if record.step >= saved_steps}),
        processes=tuple(starts[number].processes for number in sorted(starts)),
        counts_uses=not is_balanced,
    )


def kept_records(records: list[PassRecord], starts: dict[int, StartRecord]) -> Iterator[PassRecord]:
    """Return the records of all steps except steps that a later start of the run repeated."""
    first_repeated_step, earliest_step = {}, np.iinfo(np.int64).max
    for number in sorted(starts, reverse=True):
        first_repeated_step[number] = earliest_step
        earliest_step = min(earliest_step, starts[number].step)
    return (record for record in records if record.step < first_repeated_step[record.start.number])
