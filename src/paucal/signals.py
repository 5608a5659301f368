"""Signals that ask a program to stop, and how a run and its loader processes handle these signals."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# Windows has neither SIGHUP, which means that the terminal was closed, nor SIGUSR1 and SIGUSR2. SLURM sends one of the
# latter two before a job's time limit if the job was submitted with `--signal`.
_HANGUP_SIGNALS = [getattr(signal, name) for name in ("SIGHUP",) if hasattr(signal, name)]
_SLURM_SIGNALS = [getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
INTERRUPT_MESSAGE = "interrupted."
INTERRUPT_CODE = 130  # the exit code that shells report for a program that was ended by SIGINT


def exit_on_interrupt() -> None:
    """Let SIGINT (Ctrl-C) end the process with one line instead of a traceback, until `raise_on_interrupt` is called.

    The command line needs this during its imports, since an imported module could catch a KeyboardInterrupt. If SIGINT
    is ignored or has another handler, that is not changed.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)


def raise_on_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt again after `exit_on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_signals() -> tuple[int, ...]:
    """Return the numbers of the signals, besides SIGINT, at which a run saves a checkpoint and ends.

    In a SLURM job, these include SIGUSR1 and SIGUSR2. A signal that another program already handles is left out:
    `nohup` ignores SIGHUP, and submitit ignores SIGTERM and requeues its job at SIGUSR2.
    """
    is_in_slurm = any(name.startswith("SLURM_") for name in os.environ)
    numbers = []
    for number in (signal.SIGTERM, *_HANGUP_SIGNALS, *(_SLURM_SIGNALS if is_in_slurm else ())):
        handler = signal.getsignal(number)
        owner = getattr(handler, "__module__", None) or ""
        if number in _SLURM_SIGNALS:
            is_free = handler == signal.SIG_DFL or owner == __name__
        else:
            is_free = handler not in (signal.SIG_IGN, None) and not owner.startswith("submitit.")
        numbers += [number] if is_free else []
    return tuple(numbers)


@contextmanager
def stop_signals_as_interrupt() -> Iterator[None]:
    """Within this context, `stop_signals` raise KeyboardInterrupt, so that files and locks are cleaned up.

    During training, the run handles the signals itself in order to save a checkpoint. Signals that another program
    handles are left alone. In processes with a local rank above 0, this context has no effect.
    """
    is_local_worker = int(os.environ.get("LOCAL_RANK") or 0) > 0
    if is_local_worker or threading.current_thread() is not threading.main_thread():
        yield
        return
    process_id, previous_handlers = os.getpid(), {}

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process_id:  # loader processes are ended by their parent
            raise KeyboardInterrupt

    for number in stop_signals():
        if signal.getsignal(number) is signal.SIG_DFL:
            previous_handlers[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def ignore_stop_signals() -> None:
    """Ignore stop signals in a loader process, since its parent handles them.

    SLURM, systemd and a closing terminal send signals to all processes of a job at once. If a loader process ended
    then, training would fail in the middle of a step. On Linux, where the sender of a signal is known, a SIGTERM from
    the parent still ends the loader process.
    """
    for number in (signal.SIGINT, *_HANGUP_SIGNALS, *_SLURM_SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_parent_sigterm, name="SIGTERM", daemon=True).start()


def _exit_on_parent_sigterm() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # standard error may be closed
        os.write(2, f"{INTERRUPT_MESSAGE}\n".encode())
    os._exit(INTERRUPT_CODE)
