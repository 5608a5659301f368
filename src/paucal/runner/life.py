"""Execute a run: begin or resume it, assemble and announce its setup, train, and conclude."""

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from lightning.pytorch import Callback

from paucal.cores import limited_threads, warn_of_late_import
from paucal.data.checking.survey import image_digests
from paucal.data.processes import require_main_guard
from paucal.data.sampler import steps_per_epoch
from paucal.data.shards.folders import is_remote
from paucal.data.splits.split_csv import require_same_images, write_split
from paucal.memory import keep_freed_memory
from paucal.models.trained import save_trained
from paucal.runner.clock import count_time_from
from paucal.runner.console import Console, NullConsole, SilentConsole
from paucal.runner.initial_weights import START_FILE
from paucal.runner.job import A, EpochListener, Job, R, S
from paucal.runner.loggers import Loggers, check_loggers
from paucal.runner.processes import (
    broadcast_value,
    explain_lost_processes,
    init_launched_group,
    is_rank_zero,
    receive_path,
    run_on_rank_zero,
    run_passed_to_children,
    send_path,
    tell_others_of_failure,
)
from paucal.runner.resuming import input_names, reopen, store_changes, stored_settings
from paucal.runner.run_folder import RunWriter, copy_frame_to_run, resolve_output
from paucal.runner.stored_runs import written_to_storage
from paucal.runner.time_budget import add_time_plan, describe_change
from paucal.runs import RunFolder, describe_environment
from paucal.settings.values import given_names, settings_from_keywords
from paucal.training import Outcome, RunHooks, checkpoint_step, fit
from paucal.training.ledger import Ledger
from paucal.types import UserError
from paucal.wording import counted

P = TypeVar("P", str, str | None)


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped by a signal or by its time limit, and that can be resumed from its newest checkpoint."""

    run: Path
    step: int
    total_steps: int
    verb: str = "train"

    def __str__(self) -> str:
        # Before the first step, the length of the run may not be planned yet.
        position = f"stopped after step {self.step} of {self.total_steps}" if self.step else "stopped before step 1"
        return f"{position}; resume with: paucal {self.verb} --resume {shlex.quote(RunFolder(self.run).place)}"


def begin(
    job: Job[S, A, R],
    settings: S,
    origins: Mapping[str, str],
    console: Console,
    callbacks: Sequence[Callback] = (),
    start_time: float | None = None,
) -> R | Stopped:
    """Start a run; return its result, or a `Stopped` with the step at which the run was stopped.

    Settings that the user did not give are None; `origins` has the origin of each setting that the user gave. The run's
    duration is measured from `start_time`, a value of `time.monotonic()`; None means now.
    """
    init_launched_group()
    if not is_rank_zero():
        return _join_run(job, callbacks)
    with ExitStack() as exit_stack, count_time_from(start_time), limited_threads(), RunWriter(console) as writer:
        with tell_others_of_failure():
            output, storage_callbacks = _local_folder(settings.output, exit_stack, console, settings.overwrite)
            setup = _check_and_assemble(job, replace(settings, output=output), origins, console)
            require_main_guard(setup.settings.workers)
            job.announce(setup, console)
            run = writer.begin(setup.settings.output, setup.settings.overwrite)
            setup = copy_frame_to_run(run, setup)
            settings, split, images = setup.settings, setup.data.split, setup.data.images
            run.write_config(
                asdict(settings), setup.origins, job.verb, split=split.description, location=images.location
            )
            run.write_json("env.json", describe_environment(settings.device))
            if setup.load_report is not None:
                run.write_json(START_FILE, setup.load_report.to_dict())
            write_split(run.split, images, split, image_digests(images))
            job.write_beginning(run, setup)
        send_path(run.path)
        return _execute_run(job, run, setup, console, [*callbacks, *storage_callbacks, writer])


def resume(
    job: Job[S, A, R],
    path: str | Path,
    console: Console,
    changes: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> R | Stopped:
    """Resume the run in a folder, or the newest run in a folder of runs, from its newest checkpoint.

    `changes` may contain the settings in `CHANGEABLE`, and the new paths of images and other inputs that have moved.
    """
    init_launched_group()
    if not is_rank_zero():
        return _join_run(job, callbacks)
    with ExitStack() as exit_stack, count_time_from(None), limited_threads(), RunWriter(console) as writer:
        with tell_others_of_failure():
            folder, storage_callbacks = _local_folder(str(path), exit_stack, console, is_resumed=True)
            run, settings, origins = reopen(folder, changes or {}, job)
            old_settings = stored_settings(run, job.settings_type, job.verb)[0]
            writer.lock_existing(run)
            setup = _reassemble(job, run, settings, origins, console)
            if settings.processes != old_settings.processes and job.needs_preliminary_work(setup):
                raise UserError(
                    f"{str(run.path)!r} was stopped before the length of its training was chosen, with "
                    f"{counted(old_settings.processes, 'process', 'processes')}: resume this run with the same number "
                    "of processes first."
                )
            if set(changes or {}) & set(input_names(job)):
                require_same_images(run.split, setup.data.images)
            job.announce(setup, console)
            if settings != old_settings:  # only after all checks, so that an invalid change cannot damage the run
                store_changes(run, settings, origins)
        send_path(run.path)
        return _execute_run(job, run, setup, console, [*callbacks, *storage_callbacks, writer])


def run_quietly(
    job: Job[S, A, R],
    data: object,
    resumed: str | os.PathLike[str] | None,
    callbacks: Sequence[Callback] | Callback | None,
    settings: Mapping[str, Any],
) -> R:
    """Run a job from Python, without printing; a stopped run raises a UserError."""
    name, arguments = f"paucal.{job.verb}", settings if data is None else {**settings, "data": data}
    callback_list = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    for callback in callback_list:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"{name}: callbacks contains a {type(callback).__name__}, expected lightning.pytorch.Callback."
            )
    typed_settings, names = settings_from_keywords(job.settings_type, arguments, name, job.verb), given_names(arguments)
    warn_of_late_import()
    with keep_freed_memory():
        if resumed is None:
            result = begin(job, typed_settings, dict.fromkeys(names, "given"), SilentConsole(), callback_list)
        else:
            changes = {setting: getattr(typed_settings, setting) for setting in names}
            result = resume(job, os.fspath(resumed), SilentConsole(), changes, callback_list)
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def show_config(job: Job[S, A, Any], settings: S, origins: Mapping[str, str]) -> str:
    """Return all settings as YAML for `--config`, each with its origin as a comment, without training or writing."""
    setup = _check_and_assemble(job, replace(settings, output=None), origins, SilentConsole())
    values = dict(vars(setup.settings))
    if values["init"] is None and setup.origins.get("init", "default") != "default":
        values["init"] = "none"  # random weights were chosen explicitly
    lines = []
    for name, value in values.items():
        if value is None or name in ("output", "overwrite"):
            continue
        if isinstance(value, list):
            text = f"{name}: {json.dumps(value)}"
        else:
            text = yaml.safe_dump({name: value}, allow_unicode=True, width=1000).rstrip()
        lines.append(f"{text}  # {setup.origins[name]}\n")
    return "".join(lines)


def _local_folder(
    place: P, exit_stack: ExitStack, console: Console, overwrite: bool = False, is_resumed: bool = False
) -> tuple[P | str, list[Callback]]:
    """Return the local folder of a run on object storage, and a callback that uploads it; return other paths unchanged.

    The lock on the storage is held until `exit_stack` is closed.
    """
    if place is None or not is_remote(place):
        return place, []
    stored_copy = exit_stack.enter_context(written_to_storage(place, is_resumed, console, overwrite))
    return str(stored_copy.folder), [stored_copy]


def _check_and_assemble(job: Job[S, A, Any], settings: S, origins: Mapping[str, str], console: Console) -> A:
    settings, origins = job.check(settings, origins)
    check_loggers(settings.logger)
    settings = job.with_absolute_paths(resolve_output(settings, job.reads, console))
    return job.assemble(settings, origins, console.progress)


def _reassemble(job: Job[S, A, Any], run: RunFolder, settings: S, origins: Mapping[str, str], console: Console) -> A:
    """Assemble the setup of an existing run from its folder."""
    return replace(job.assemble(settings, origins, console.progress, run), origins=origins)


def _reassemble_stored(job: Job[S, A, Any], run: RunFolder, console: Console) -> A:
    settings, origins = stored_settings(run, job.settings_type, job.verb)
    return _reassemble(job, run, settings, origins, console)


def _join_run(job: Job[S, A, R], callbacks: Sequence[Callback]) -> R | Stopped:
    """On a process other than the first, execute the run that the first process has opened."""
    run, console = RunFolder(receive_path()), NullConsole()
    return _execute_run(job, run, _reassemble_stored(job, run, console), console, callbacks)


def _execute_run(
    job: Job[S, A, R], run: RunFolder, setup: A, console: Console, callbacks: Sequence[Callback]
) -> R | Stopped:
    logger_names = setup.settings.logger if is_rank_zero() else None
    resume_command = f"paucal {job.verb} --resume {shlex.quote(run.place)}"
    with (
        run_passed_to_children(run.path),
        explain_lost_processes(resume_command),
        console.logging_to(run.log),
        Loggers(run, logger_names, console) as loggers,
    ):
        if job.needs_preliminary_work(setup):
            planned_setup = _make_preliminary_steps(job, run, setup, console)
            if planned_setup is None:
                stopped = Stopped(run.path, 0, setup.plan.total_steps, job.verb)
                console.say(str(stopped))
                return stopped
            setup = planned_setup
        loggers.log_settings(setup.settings)
        messages: list[str] = []
        # Each round trains one stage. A run has several stages only if the job's listener restarts the run.
        while True:
            listener = job.listener(run, setup, console)
            outcome = _fit_run(job, run, setup, console, listener, callbacks, loggers)
            if outcome.finished:
                result = job.conclude(run, setup, outcome, listener, console)
                loggers.finish(result.test_scores, outcome.step)
                return result
            if not broadcast_value(listener.should_restart):
                messages = listener.stop_message()
                break
            if outcome.interrupted:
                run_on_rank_zero(listener.advance_stage)
                # Advancing may have restored an older checkpoint.
                outcome = replace(outcome, step=checkpoint_step(run.last))
                break
            loggers.forget_step()
            setup = _start_next_stage(job, run, setup, listener, console)
        stopped = Stopped(run.path, outcome.step, (outcome.plan or setup.plan).corrected_total_steps, job.verb)
        for line in [*messages, str(stopped)]:
            console.say(line)
        return stopped


def _make_preliminary_steps(job: Job[S, A, Any], run: RunFolder, setup: A, console: Console) -> A | None:
    """Make the preliminary steps on the first process; return the new setup, or None if a signal stopped the steps."""

    def make_steps() -> bool:
        try:
            return job.run_preliminary_work(run, setup, console)
        except KeyboardInterrupt:
            if not run.card.exists():  # no model is saved yet, so there is nothing to resume
                raise
            return False

    finished, planned_at = run_on_rank_zero(make_steps), time.monotonic()
    if not finished:
        return None
    # All processes, including the first, read the result from the run folder, as a resumed run does. The first process
    # does not reuse its setup, since the images in memory may still be larger than the image size that was chosen.
    planned_setup = _reassemble_stored(job, run, console)
    return replace(planned_setup, plan=replace(planned_setup.plan, deadline=setup.plan.deadline), planned_at=planned_at)


def _start_next_stage(job: Job[S, A, Any], run: RunFolder, setup: A, listener: EpochListener, console: Console) -> A:
    """Advance a run to its next stage on the first process, and assemble the setup again on every process."""
    setups: list[A] = []

    def advance() -> None:
        listener.advance_stage()
        setups.append(_reassemble_stored(job, run, console))

    run_on_rank_zero(advance)
    # The other processes read the settings that the first process has stored. The deadline is kept, since the time
    # limit applies to the whole command.
    new_setup = setups[0] if setups else _reassemble_stored(job, run, console)
    return replace(new_setup, plan=replace(new_setup.plan, deadline=setup.plan.deadline))


def _fit_run(
    job: Job[S, A, Any],
    run: RunFolder,
    setup: A,
    console: Console,
    listener: EpochListener,
    callbacks: Sequence[Callback],
    loggers: Loggers,
) -> Outcome:
    if not setup.plan.total_steps:  # the network stays frozen, and a linear probe on its features is the final model
        return Outcome(True, 0, [], {}, 0.0)
    with job.prepared(run, setup, console) as prepared:
        first_pass = checkpoint_step(run.last) * prepared.plan.accumulate if run.last.exists() else 0
        plan = add_time_plan(run, prepared.plan, prepared.planned_at)
        setup = replace(prepared, plan=plan)

        def log_and_listen(epoch: int, epochs: int, row: Mapping[str, float]) -> bool | None:
            loggers.log_row(row)
            return listener.on_epoch(epoch, epochs, row)

        hooks = RunHooks(
            run,
            save_model=lambda module: save_trained(run, module, setup.card),
            validation=job.validation(setup),
            on_epoch=log_and_listen,
            on_start=listener.on_start if listener.scores_start else None,
            on_change=lambda plan, pace: console.say(describe_change(plan, pace)),
        )
        if setup.settings.ledger:
            n_train, batch = len(setup.data.split_indices("train")), setup.settings.effective_batch
            ledger = Ledger(run.path, setup.data.images.keys, batch, steps_per_epoch(n_train, batch))
            callbacks = [ledger, *callbacks]
        return fit(
            setup.objective,
            lambda: job.loader(setup, first_pass),
            job.optimization(setup),
            plan,
            hooks,
            [*console.callbacks(), *callbacks],
        )
