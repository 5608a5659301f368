"""One training run from settings to report."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback

from paucal.data.split_file import write_split
from paucal.evaluation.deployed import saver
from paucal.recipes.assembly import Assembled, assemble
from paucal.recipes.checks import check_ranges, check_used
from paucal.recipes.finish import Result, conclude
from paucal.recipes.loaders import (
    train_loader,
    training_sheet,
    validation,
)
from paucal.recipes.methods import check_names
from paucal.recipes.plans import optimization
from paucal.recipes.prepare import pin_data
from paucal.recipes.processes import announce, announced, forget_children, is_first, lead_children_to, meet
from paucal.recipes.published import with_recipe
from paucal.recipes.resuming import reopen, store_changes, stored_settings
from paucal.recipes.settings import TrainSettings
from paucal.recipes.starting import RECORD, pin_start
from paucal.recipes.voice import Mute, Quiet, Voice
from paucal.runs import RunFolder, create_run, describe_environment, write_atomically
from paucal.training import Outcome, Records, Watch, checkpoint_position, fit
from paucal.types import UserError


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped before its end, by a signal or its time limit; its state is saved.

    Attributes:
        run: the run folder.
        step: optimizer steps made.
        total_steps: optimizer steps of the whole run.
        verb: that goes on with it.
    """

    run: Path
    step: int
    total_steps: int
    verb: str = "train"

    def __str__(self) -> str:
        where = f"stopped after step {self.step} of {self.total_steps}"
        return f"{where}; go on with: paucal {self.verb} --resume {shlex.quote(str(self.run))}"


def train(data: str | Path = "digits", **settings: Any) -> Result:
    """Train a model and judge it on the test images; the same as `paucal train`.

    Args:
        data: "digits" (the built-in images), a folder of images, Parquet in the Hugging Face layout, a list file, or
            the name of a published set such as "cifar10".
        **settings: any field of `paucal.recipes.settings.TrainSettings`, such as `model`, `epochs` or `output`;
            what is left out is chosen from the data.

    Returns:
        The run folder and the report on the test images.

    Raises:
        UserError: the data or a setting does not do, and the message says what to change; or the run was stopped, by a
            signal or its time limit, and the message says how to go on.
        TypeError: a setting does not exist.

    Example:
        >>> result = paucal.train("photos/", model="resnet18", epochs=20)  # doctest: +SKIP
        >>> result.report.scores["top1"].value  # doctest: +SKIP
        0.93
    """
    unknown = set(settings) - {f.name for f in fields(TrainSettings)}
    if unknown:
        raise TypeError(f"paucal.train has no setting {sorted(unknown)[0]!r}; see TrainSettings for all of them")
    given = dict.fromkeys([*settings, "data"], "given")
    chosen = TrainSettings(**{**settings, "data": str(data)})
    result = train_run(chosen, given, Quiet())
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def train_run(
    settings: TrainSettings, given: Mapping[str, str], voice: Voice, callbacks: Sequence[Callback] = ()
) -> Result | Stopped:
    """Train from the beginning.

    Args:
        settings: what was given; None where nothing was.
        given: origin of each setting that was given.
        voice: prints and shows progress.
        callbacks: more Lightning callbacks.

    Returns:
        The result, or where the run was stopped before its end.
    """
    meet()
    if not is_first():
        return _go_on(RunFolder(announced()), Mute(), callbacks)
    run, assembled = _begin(settings, given, voice)
    return _go(run, assembled, voice, callbacks)


def show_config(settings: TrainSettings, given: Mapping[str, str]) -> str:
    """Return all settings as YAML that `--config` reads, each with its reason; nothing is trained or written."""
    assembled = _check_and_assemble(replace(settings, output=None), given, Quiet())
    return settings_as_yaml(assembled.settings, assembled.origin)


def settings_as_yaml(settings: object, origin: Mapping[str, str]) -> str:
    """Return all settings as YAML that `--config` reads, each with its origin as a comment."""
    return "".join(
        f"{yaml.safe_dump({name: value}, allow_unicode=True, width=1000).rstrip()}  # {origin[name]}\n"
        if not isinstance(value, list)
        else f"{name}: {json.dumps(value)}  # {origin[name]}\n"
        for name, value in vars(settings).items()
        if value is not None and name not in ("output", "overwrite")
    )


def _begin(settings: TrainSettings, given: Mapping[str, str], voice: Voice) -> tuple[RunFolder, Assembled]:
    """Check everything, then make the run's folder."""
    made: list[Assembled] = []

    def make() -> Path:
        made.append(_check_and_assemble(settings, given, voice))
        chosen = made[0].settings
        run = create_run(None if chosen.output is None else Path(chosen.output), overwrite=chosen.overwrite)
        _write_beginning(run, made[0])
        return run.path

    return RunFolder(announce(make)), made[0]


def _check_and_assemble(settings: TrainSettings, given: Mapping[str, str], voice: Voice) -> Assembled:
    settings, given = with_recipe(settings, given)
    check_names(settings)
    check_used(settings, given)
    check_ranges(settings)
    check_output(settings.output, settings.overwrite)
    return assemble(pin_start(pin_data(settings)), given, voice)


def resume_run(
    path: str | Path, voice: Voice, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = ()
) -> Result | Stopped:
    """Go on with a run that was stopped, from its newest saved state.

    Args:
        path: a run folder, or a folder of runs of which the newest is taken.
        voice: prints and shows progress.
        changes: settings to change; only those in `CHANGEABLE`, which do not change the result.
        callbacks: more Lightning callbacks.

    Raises:
        UserError: there is no such run, it is finished, or its data has changed.
    """
    meet()
    if not is_first():
        return _go_on(RunFolder(announced()), Mute(), callbacks)
    made: list[Assembled] = []

    def make() -> Path:
        run, settings, origin = reopen(path, changes or {}, TrainSettings)
        made.append(replace(assemble(settings, origin, voice, run), origin=origin))
        if changes:  # only now: a change that does not do must not spoil the run
            store_changes(run, settings, origin)
        return run.path

    return _go(RunFolder(announce(make)), made[0], voice, callbacks)


def _go_on(run: RunFolder, voice: Voice, callbacks: Sequence[Callback]) -> Result | Stopped:
    settings, origin = stored_settings(run, TrainSettings)
    assembled = assemble(settings, origin, voice, run)
    return _go(run, replace(assembled, origin=origin), voice, callbacks)


def check_output(output: str | None, overwrite: bool) -> None:
    """Refuse an existing run folder before any work is done, and replace it only after all of it."""
    if output is None or overwrite:
        return
    path = Path(output)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        create_run(path)  # raises, with the advice that belongs to it


def _write_beginning(run: RunFolder, assembled: Assembled) -> None:
    settings = asdict(assembled.settings)
    split = assembled.prepared.split.description
    run.write_yaml(run.config.name, {"settings": settings, "origin": dict(assembled.origin), "split": split})
    run.write_json("env.json", describe_environment(assembled.settings.device or "cpu"))
    if assembled.start is not None:
        run.write_json(RECORD, assembled.start.to_dict())
    write_split(run.split, assembled.prepared.images, assembled.prepared.split)
    sheet = training_sheet(assembled.prepared, assembled.card, assembled.settings, assembled.plan)
    write_atomically(run.plots / "train_batch.png", lambda file: sheet.save(file, "PNG"))


def _go(run: RunFolder, assembled: Assembled, voice: Voice, callbacks: Sequence[Callback]) -> Result | Stopped:
    lead_children_to(run.path)
    try:
        with voice.logging_to(run.log):
            outcome = _fit(run, assembled, voice, callbacks)
            if outcome.finished:
                return conclude(run, assembled, outcome, voice)
            stopped = Stopped(run.path, outcome.step, assembled.plan.total_steps)
            voice.say(str(stopped))
            return stopped
    finally:
        forget_children()


def _fit(run: RunFolder, assembled: Assembled, voice: Voice, callbacks: Sequence[Callback]) -> Outcome:
    settings, prepared, plan = assembled.settings, assembled.prepared, assembled.plan
    start = checkpoint_position(run.last)[1] if run.last.exists() else 0
    preprocess = assembled.card.preprocessing
    request = assembled.objective.data_request
    watch = Watch(validation(prepared, preprocess, settings), score="val_top1", loss="val_loss")
    return fit(
        assembled.objective,
        lambda: train_loader(prepared, preprocess, settings, plan, request, start),
        optimization(settings, plan),
        plan,
        Records(run, saver(run, assembled.card), watch, voice.on_epoch),
        [*voice.callbacks(), *callbacks],
    )
