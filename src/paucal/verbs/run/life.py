"""The one life of a run: open or resume, assemble, announce, fit, conclude; the same for every job."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from lightning.pytorch import Callback

from paucal.cores import note_late_import, own_threads
from paucal.data.checking.survey import image_digests
from paucal.data.processes import require_guard
from paucal.data.splits.file import require_same_images, write_split
from paucal.memory import kept_memory
from paucal.models.trained import save_trained
from paucal.runs import RunFolder, describe_environment
from paucal.settings.groups import JobSettings
from paucal.settings.values import from_python, given_names
from paucal.training import Outcome, Records, checkpoint_position, fit
from paucal.types import UserError
from paucal.verbs.run.assembled import Assembled
from paucal.verbs.run.finished import FinishedRun
from paucal.verbs.run.job import Job, Watcher
from paucal.verbs.run.loggers.filling import Loggers
from paucal.verbs.run.loggers.kinds import check_loggers
from paucal.verbs.run.outputs import settle_output
from paucal.verbs.run.processes import (
    agreed,
    announce,
    announced,
    first_does,
    forget_children,
    is_first,
    lead_children_to,
    meet,
)
from paucal.verbs.run.resuming import places_of, reopen, store_changes, stored_settings
from paucal.verbs.run.start_time import counted_from
from paucal.verbs.run.start_weights import RECORD
from paucal.verbs.run.time_plan import change_line, with_time
from paucal.verbs.run.voice import Mute, Quiet, Voice
from paucal.verbs.run.writing import Writing

S = TypeVar("S", bound=JobSettings)
R = TypeVar("R", bound=FinishedRun)


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


def begin(
    job: Job[S, R],
    settings: S,
    given: Mapping[str, str],
    voice: Voice,
    callbacks: Sequence[Callback] = (),
    start: float | None = None,
) -> R | Stopped:
    """Start a run.

    Args:
        job: what kind of run.
        settings: what was given; None where nothing was.
        given: origin of each setting that was given.
        voice: prints and shows progress.
        callbacks: more Lightning callbacks.
        start: value of `time.monotonic()` that the time of the run counts from; None for the present one.

    Returns:
        The result, or where the run was stopped before its end.

    Raises:
        UserError: the data or a setting does not do.
    """
    meet()
    if not is_first():
        return _follow(job, callbacks)
    made: list[Assembled[S]] = []

    def make() -> Path:
        made.append(_check_and_assemble(job, settings, given, voice))
        require_guard(made[0].settings.workers)
        job.announce(made[0], voice)
        chosen = made[0].settings
        run = writing.begin(chosen.output, chosen.overwrite)
        _write_beginning(job, run, made[0])
        return run.path

    with counted_from(start), own_threads(), Writing(voice) as writing:
        return _go(job, RunFolder(announce(make)), made[0], voice, [*callbacks, *writing.callbacks()])


def resume(
    job: Job[S, R],
    path: str | Path,
    voice: Voice,
    changes: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> R | Stopped:
    """Go on with a run that was stopped, from its newest saved state.

    Args:
        job: what kind of run.
        path: a run folder, or a folder of runs of which the newest is taken.
        voice: prints and shows progress.
        changes: Settings to change: those in `CHANGEABLE`, which do not change the result, and the paths of images
            and other inputs that have moved.
        callbacks: more Lightning callbacks.

    Raises:
        UserError: there is no such run, it is finished, or its data has changed.
    """
    meet()
    if not is_first():
        return _follow(job, callbacks)
    made: list[Assembled[S]] = []

    def make() -> Path:
        run, settings, origin = reopen(path, changes or {}, job)
        writing.go_on(run)
        made.append(_again(job, run, settings, origin, voice))
        if set(changes or {}) & set(places_of(job)):
            require_same_images(run.split, made[0].prepared.images)
        job.announce(made[0], voice)
        if changes:  # only now: a change that does not do must not spoil the run
            store_changes(run, settings, origin)
        return run.path

    with counted_from(None), own_threads(), Writing(voice) as writing:
        return _go(job, RunFolder(announce(make)), made[0], voice, [*callbacks, *writing.callbacks()])


def run_quietly(job: Job[S, R], settings: Mapping[str, Any], resumed: str | Path | None, name: str) -> R:
    """Run a job from Python: nothing is printed, and a run that was stopped is an error.

    Args:
        job: what kind of run.
        settings: by name, as they were given.
        resumed: the run to go on with, in which case `settings` are changes; None for a new one.
        name: of the function that was called.

    Raises:
        UserError: the data or a setting does not do; or the run was stopped, and the message says how to go on.
        TypeError: a setting does not exist.
    """
    made, given = from_python(job.kind, settings, name, job.verb), given_names(settings)
    note_late_import()
    with kept_memory():
        if resumed is None:
            result = begin(job, made, dict.fromkeys(given, "given"), Quiet())
        else:
            result = resume(job, resumed, Quiet(), {word: getattr(made, word) for word in given})
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def show_config(job: Job[S, Any], settings: S, given: Mapping[str, str]) -> str:
    """Return all settings as YAML that `--config` reads, each with its reason; nothing is trained or written."""
    assembled = _check_and_assemble(job, replace(settings, output=None), given, Quiet())
    return "".join(
        f"{yaml.safe_dump({name: value}, allow_unicode=True, width=1000).rstrip()}  # {assembled.origin[name]}\n"
        if not isinstance(value, list)
        else f"{name}: {json.dumps(value)}  # {assembled.origin[name]}\n"
        for name, value in _told(vars(assembled.settings), assembled.origin).items()
        if value is not None and name not in ("output", "overwrite")
    )


def _told(values: Mapping[str, Any], origin: Mapping[str, str]) -> dict[str, Any]:
    """Return settings as a config has to say them: a start from nothing that was chosen is one, too."""
    chosen = values["init"] is None and origin.get("init", "default") != "default"
    return {**values, "init": "none" if chosen else values["init"]}


def _check_and_assemble(job: Job[S, Any], settings: S, given: Mapping[str, str], voice: Voice) -> Assembled[S]:
    settings, given = job.check(settings, given)
    check_loggers(settings.logger)
    settings = job.pin(settle_output(settings, job.reads, voice))
    return job.assemble(settings, given, voice.progress)


def _again(job: Job[S, Any], run: RunFolder, settings: S, origin: Mapping[str, str], voice: Voice) -> Assembled[S]:
    """Assemble a run that exists, where it stands."""
    return replace(job.assemble(settings, origin, voice.progress, run), origin=origin)


def _follow(job: Job[S, R], callbacks: Sequence[Callback]) -> R | Stopped:
    """Join the run that the first process has opened."""
    run, voice = RunFolder(announced()), Mute()
    settings, origin = stored_settings(run, job.kind, job.verb)
    return _go(job, run, _again(job, run, settings, origin, voice), voice, callbacks)


def _write_beginning(job: Job[S, Any], run: RunFolder, assembled: Assembled[S]) -> None:
    settings, split = assembled.settings, assembled.prepared.split
    images = assembled.prepared.images
    run.write_config(asdict(settings), assembled.origin, job.verb, split=split.description, location=images.location)
    run.write_json("env.json", describe_environment(settings.device or "cpu"))
    if assembled.start is not None:
        run.write_json(RECORD, assembled.start.to_dict())
    write_split(run.split, images, split, image_digests(images))
    job.write_beginning(run, assembled)


def _go(
    job: Job[S, R], run: RunFolder, assembled: Assembled[S], voice: Voice, callbacks: Sequence[Callback]
) -> R | Stopped:
    names = assembled.settings.logger if is_first() else None
    lead_children_to(run.path)
    try:
        with voice.logging_to(run.log), Loggers(run, names, voice) as loggers:
            if job.is_open(assembled):
                settled = _settled(job, run, assembled, voice)
                if settled is None:
                    stopped = Stopped(run.path, 0, assembled.plan.total_steps, job.verb)
                    voice.say(str(stopped))
                    return stopped
                assembled = settled
            loggers.describe(assembled.settings)
            while True:
                watcher = job.watcher(run, assembled, voice)
                outcome = _fit(job, run, assembled, voice, watcher, callbacks, loggers)
                if outcome.finished:
                    result = job.conclude(run, assembled, outcome, watcher, voice)
                    loggers.finish(result.test_scores, outcome.step)
                    return result
                if not agreed(watcher.wants_a_change):
                    break
                loggers.go_back()
                assembled = _next_stage(job, run, assembled, watcher, voice)
            stopped = Stopped(run.path, outcome.step, (outcome.plan or assembled.plan).last_step, job.verb)
            for line in [*watcher.last_words(), str(stopped)]:
                voice.say(line)
            return stopped
    finally:
        forget_children()


def _settled(job: Job[S, Any], run: RunFolder, assembled: Assembled[S], voice: Voice) -> Assembled[S] | None:
    """Let the first process find out what is open, and put the run together anew; None where it was stopped."""
    done = [True]

    def find_out() -> None:
        try:
            done[0] = job.find_out(run, assembled, voice)
        except KeyboardInterrupt:
            if not run.card.exists():  # nothing is there yet that would be worth going on with
                raise
            done[0] = False

    first_does(find_out)
    planned_at = time.monotonic()
    if not agreed(done[0]):
        return None
    settings, origin = stored_settings(run, job.kind, job.verb)
    made = _again(job, run, settings, origin, voice)
    return replace(made, plan=replace(made.plan, deadline=assembled.plan.deadline), planned_at=planned_at)


def _next_stage(
    job: Job[S, Any], run: RunFolder, assembled: Assembled[S], watcher: Watcher, voice: Voice
) -> Assembled[S]:
    """Change what has to be changed before the run goes on, and assemble it again on every process."""
    made: list[Assembled[S]] = []

    def again() -> None:
        settings, origin = stored_settings(run, job.kind, job.verb)
        made.append(_again(job, run, settings, origin, voice))

    def prepare() -> None:
        watcher.prepare_next()
        again()

    first_does(prepare)
    if not made:  # the others read what the first has written
        again()
    # The time that is allowed is that of the whole command.
    return replace(made[0], plan=replace(made[0].plan, deadline=assembled.plan.deadline))


def _fit(
    job: Job[S, Any],
    run: RunFolder,
    assembled: Assembled[S],
    voice: Voice,
    watcher: Watcher,
    callbacks: Sequence[Callback],
    loggers: Loggers,
) -> Outcome:
    if not assembled.plan.total_steps:  # what the run has is all that it will have
        return Outcome(True, 0, [], {}, 0.0)
    start = checkpoint_position(run.last)[1] if run.last.exists() else 0
    plan = with_time(run, assembled.plan, assembled.planned_at)
    assembled = replace(assembled, plan=plan)
    records = Records(
        run,
        save_model=lambda module: save_trained(run, module, assembled.card),
        watch=watcher.watch(),
        on_epoch=loggers.heard(watcher.on_epoch),
        on_start=watcher.on_start,
        on_change=lambda plan, pace: voice.say(change_line(plan, pace)),
    )
    callbacks = [*voice.callbacks(), *callbacks]
    return fit(
        assembled.objective, lambda: job.loader(assembled, start), job.optimization(assembled), plan, records, callbacks
    )
