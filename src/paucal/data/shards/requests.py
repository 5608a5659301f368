"""Requests to storage: failed requests are sent again for some time, and slow requests are sent a second time."""

import errno
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

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
    """Try a network request for two minutes, and at least three times; return the result, or raise `RetriesFailed`."""
    start_time = time.monotonic()
    jitter = random.Random()  # not seeded, since pauses must differ between processes
    for attempt in itertools.count():
        try:
            return work()
        except (FileNotFoundError, PermissionError, UserError):  # another try would fail too
            raise
        except Exception as problem:  # each storage library raises different exceptions
            if isinstance(problem, OSError) and problem.errno in DISK_FULL:
                raise
            # Random, so that the processes of a run do not send requests to an overloaded storage at the same time.
            pause = jitter.uniform(0, min(_MAX_PAUSE, _FIRST_PAUSE * 2**attempt))
            seconds = time.monotonic() - start_time
            if attempt + 1 >= _MIN_TRIES and seconds + pause >= _MIN_SECONDS:
                raise RetriesFailed(f"{first_line(problem)}, after {attempt + 1} tries in {seconds:.0f} s") from problem
            time.sleep(pause)
    raise AssertionError


def send_hedged(work: Callable[[int], T], hedge_delay_seconds: float, discard: Callable[[T], None]) -> T:
    """Return the result of a request; after `hedge_delay_seconds`, send it again and return the first response.

    `work` is called with 0 for the first request and 1 for the second. A response is passed to `discard` if it comes
    second, or if this function was interrupted. The error is raised if all requests that were sent failed.
    """
    responses: list[Future[T]] = []

    def send(number: int) -> None:
        response: Future[T] = Future()

        def work_in_thread() -> None:
            try:
                response.set_result(work(number))
            except BaseException as problem:  # raised again in the caller's thread
                response.set_exception(problem)

        responses.append(response)
        threading.Thread(target=work_in_thread, name="shard request", daemon=True).start()

    def discard_value(response: Future[T]) -> None:
        if response.exception() is None:
            discard(response.result())

    used = None
    try:
        send(0)
        if not wait(responses, hedge_delay_seconds).done:
            send(1)
            arrived, late = wait(responses, return_when=FIRST_COMPLETED)
            if late and all(response.exception() for response in arrived):
                arrived = wait(late).done
            used = min(arrived, key=lambda response: response.exception() is not None)
        else:
            used = responses[0]
        return used.result()
    finally:
        for response in responses:
            if response is not used:
                response.add_done_callback(discard_value)
