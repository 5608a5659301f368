"""Signals that ask a program to end, and their handling in processes that load images."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = ("SIGTERM", "SIGHUP")  # SIGHUP: the terminal closes; Windows lacks it
# SLURM sends these before its time limit if `--signal` requests it.
_WARNING = ("SIGUSR1", "SIGUSR2")


def stop_signals() -> tuple[int, ...]:
    """Return the signals, besides SIGINT, at which a run saves its state and ends.

    In a SLURM job, these include SIGUSR1 and SIGUSR2. A signal is left out if another program has already changed its
    handling: `nohup` ignores SIGHUP, submitit ignores SIGTERM and requeues its job at SIGUSR2.
    """
    in_slurm = any(name.startswith("SLURM_") for name in os.environ)
    numbers = [*_signal_numbers(_ENDING), *(_signal_numbers(_WARNING) if in_slurm else ())]
    return tuple(number for number in numbers if _is_free(number))


@contextmanager
def stop_signals_as_interrupt() -> Iterator[None]:
    """Handle these signals like Ctrl-C: half-written files are removed, and locks released.

    During training, the run handles the signals itself, to save its state. Signals that another program handles, and
    processes of local rank above 0, are left alone.
    """
    is_led = int(os.environ.get("LOCAL_RANK") or 0) > 0
    if is_led or threading.current_thread() is not threading.main_thread():
        yield
        return
    own, previous = os.getpid(), {}

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:  # processes that load images end with their parent
            raise KeyboardInterrupt

    for number in stop_signals():
        if signal.getsignal(number) is signal.SIG_DFL:
            previous[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def ignore_stop_signals() -> None:
    """Keep a loader process alive when a signal reaches the whole process group; its parent handles the signal.

    SLURM, systemd and a closing terminal send signals to all processes of a job at once. If a loader process ended
    then, the training would fail in the middle of a step. A SIGTERM from the parent itself still ends it, if
    the system tells who sent a signal.
    """
    for number in (signal.SIGINT, *_signal_numbers((*_ENDING[1:], *_WARNING))):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, name="SIGTERM", daemon=True).start()


def _end_with_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _signal_numbers(names: tuple[str, ...]) -> list[int]:
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _is_free(number: int) -> bool:
    handler = signal.getsignal(number)
    owner = getattr(handler, "__module__", None) or ""
    if number in _signal_numbers(_WARNING):
        return handler == signal.SIG_DFL or owner == __name__
    return handler not in (signal.SIG_IGN, None) and not owner.startswith("submitit.")
