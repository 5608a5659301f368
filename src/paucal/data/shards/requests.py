"""Requests to storage: failed requests are sent again for some time, and slow requests are sent a second time."""

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

# Minimum number of tries of a request, and number of seconds after which no further try is started.
_MIN_TRIES, _MIN_SECONDS = 3, 120.0
_FIRST_PAUSE, _MAX_PAUSE = 2.0, 30.0  # upper limit of the first random pause, and of all pauses, in seconds
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # numbers of the operating system's errors for a full disk
T = TypeVar("T")


class RetriesFailed(Exception):
    """All tries of a request failed; the message has the last error, the number of tries and the elapsed time."""


def retry(work: Callable[[], T]) -> T:
    """Try a network request for two minutes, and at least three times; return the result, or raise `RetriesFailed`.

    The pauses between tries are random, up to a limit that doubles each time, so that the processes of a run do not
    send their requests to an overloaded storage at the same time.
    """
    start_time = time.monotonic()
    jitter = random.Random()  # without a seed, since pauses must differ between processes
    for attempt in itertools.count():
        try:
            return work()
        except (FileNotFoundError, PermissionError, UserError):  # another try would fail too
            raise
        except Exception as problem:  # each storage library raises different exceptions
            if isinstance(problem, OSError) and problem.errno in DISK_FULL:
                raise
            pause = jitter.uniform(0, min(_MAX_PAUSE, _FIRST_PAUSE * 2**attempt))
            seconds = time.monotonic() - start_time
            if attempt + 1 >= _MIN_TRIES and seconds + pause >= _MIN_SECONDS:
                raise RetriesFailed(f"{first_line(problem)}, after {attempt + 1} tries in {seconds:.0f} s") from problem
            time.sleep(pause)
    raise AssertionError


def send_hedged(work: Callable[[int], T], hedge_delay_seconds: float, discard: Callable[[T], None]) -> T:
    """Return the result of a request; after `hedge_delay_seconds`, send it again and return the first response.

    `work` is called with 0 for the first request and 1 for the second. A response is passed to `discard` if it comes
    second, or if this function was interrupted. The error is raised if the first request failed before the second was
    sent, or if both failed.
    """
    responses: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    lock, is_decided = threading.Lock(), threading.Event()

    def send_and_queue_response(number: int) -> None:
        try:
            value = work(number)
        except BaseException as problem:  # raised again in the caller's thread
            responses.put((None, problem))
            return
        with lock:
            is_late = is_decided.is_set()
            is_decided.set()
            if not is_late:
                responses.put((value, None))
        if is_late:
            discard(value)

    def send_in_thread(number: int) -> None:
        threading.Thread(target=send_and_queue_response, args=(number,), name="shard request", daemon=True).start()

    send_in_thread(0)
    try:
        try:
            response = responses.get(timeout=hedge_delay_seconds)
        except queue.Empty:
            send_in_thread(1)
            response = responses.get()
            if response[1] is not None:
                response = responses.get()
    except BaseException:
        with lock:
            is_decided.set()
        _discard_all(responses, discard)
        raise
    value, problem = response
    if problem is not None:
        raise problem
    return value


def _discard_all(responses: "queue.SimpleQueue[Any]", discard: Callable[[T], None]) -> None:
    while not responses.empty():
        value, problem = responses.get()
        if problem is None:
            discard(value)
