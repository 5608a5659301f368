"""Requests to storage that may fail or be slow: repeated within a time budget, or sent twice when slow."""

import errno
import itertools
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from paucal.types import UserError
from paucal.wording import first_line

_TRIES = 3  # minimum number of tries
_BUDGET = 120.0  # seconds after which no request is tried again
_PAUSE, _LONGEST_PAUSE = 2.0, 30.0  # seconds: longest pause before the second try, and before any try
FULL = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")


class GaveUp(Exception):
    """A request failed until its budget was spent; the text says why, how often and for how long."""


def retry(work: Callable[[], T]) -> T:
    """Return the result of a network request, trying it again for two minutes, but at least three times.

    Pauses double and are random, so that the processes of a run do not hit an overloaded storage all at once.

    Raises:
        GaveUp: No try succeeded.
    """
    start_time = time.monotonic()
    jitter = random.Random()  # unlike other random numbers, these must differ between processes
    for attempt in itertools.count():
        try:
            return work()
        except (FileNotFoundError, PermissionError, UserError):  # another try would fail too
            raise
        except Exception as problem:  # each storage library has its own exceptions, and networks fail temporarily
            if isinstance(problem, OSError) and problem.errno in FULL:
                raise
            pause = jitter.uniform(0, min(_LONGEST_PAUSE, _PAUSE * 2**attempt))
            seconds = time.monotonic() - start_time
            if attempt + 1 >= _TRIES and seconds + pause >= _BUDGET:
                raise GaveUp(f"{first_line(problem)}, after {attempt + 1} tries in {seconds:.0f} s") from problem
            time.sleep(pause)
    raise AssertionError


def send_hedged(work: Callable[[int], T], patience: float, discard: Callable[[T], None]) -> T:
    """Return the result of a request; if it takes long, send it again and return the first response.

    Args:
        work: Function that makes the request, given its number: 0, or 1 for the second.
        patience: Seconds after which the second request begins.
        discard: Function called with each response that comes too late, which is every one after an interruption.

    Raises:
        Exception: The first request failed within its patience, or both failed.
    """
    responses: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    lock, won = threading.Lock(), threading.Event()

    def send(number: int) -> None:
        try:
            value = work(number)
        except BaseException as problem:  # raised by the caller's thread
            responses.put((None, problem))
            return
        with lock:
            is_late = won.is_set()
            won.set()
            if not is_late:
                responses.put((value, None))
        if is_late:
            discard(value)

    def begin(number: int) -> None:
        threading.Thread(target=send, args=(number,), name="shard request", daemon=True).start()

    begin(0)
    try:
        try:
            response = responses.get(timeout=patience)
        except queue.Empty:
            begin(1)
            response = responses.get()
            if response[1] is not None:
                response = responses.get()
    except BaseException:
        with lock:
            won.set()
        _discard_all(responses, discard)
        raise
    value, problem = response
    if problem is not None:
        raise problem
    return value  # type: ignore[return-value]  # set where there is no problem


def _discard_all(responses: "queue.SimpleQueue[Any]", discard: Callable[[T], None]) -> None:
    while not responses.empty():
        value, problem = responses.get()
        if problem is None:
            discard(value)
