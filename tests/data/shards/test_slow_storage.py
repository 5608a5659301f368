"""Storage that is slow: shards are asked for a second time, and before they are needed."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.shards.made_sets import URL, number_of, shards_of
from paucal.data.shards import folders as place_module
from paucal.data.shards import requests as requests_module
from paucal.data.shards import stream as stream_module
from paucal.data.shards.folders import RemoteShardFolder
from paucal.data.shards.requests import send_hedged
from paucal.data.shards.stream import ShardPrefetcher, StreamOrder
from paucal.data.sources.opening import open_images


def wait_for(happened) -> None:
    end = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_hedged__the_first_answer_of_two_requests_wins():
    is_answered, late = threading.Event(), []

    def work(number: int) -> str:
        if number == 0:
            is_answered.wait(10)
        return f"answer {number}"

    assert send_hedged(work, 0.01, late.append) == "answer 1"
    is_answered.set()
    while not late:
        time.sleep(0.001)
    assert late == ["answer 0"]
    assert send_hedged(lambda number: number, 10, late.append) == 0
    assert len(late) == 1


def test_hedged__a_failure_counts_once_no_other_request_is_left():
    is_asked, asked = threading.Event(), []

    def slow_or_failing(number: int) -> str:
        asked.append(number)
        if number == 0:
            is_asked.wait(10)
            return "slow"
        is_asked.set()
        raise ConnectionError("second")

    assert send_hedged(slow_or_failing, 0.01, asked.append) == "slow"
    assert asked == [0, 1]
    with pytest.raises(ZeroDivisionError):  # within its patience: what tries again decides
        send_hedged(lambda number: 1 // number, 10, asked.append)


@pytest.mark.parametrize("is_there", [False, True])
def test_hedged__answers_are_late_where_the_wait_is_interrupted(is_there, monkeypatch):
    release, late = threading.Event(), []

    def interrupted(responses, timeout):
        if is_there:
            wait_for(lambda: responses[0].done())
        raise KeyboardInterrupt

    monkeypatch.setattr(requests_module, "wait", interrupted)
    if is_there:
        release.set()
    with pytest.raises(KeyboardInterrupt):
        send_hedged(lambda number: release.wait(10) and number, 10, late.append)
    assert late == ([0] if is_there else [])
    release.set()
    wait_for(lambda: late == [0])


def test_remote__what_ended_processes_have_left_is_removed(storage, cache):
    images = open_images(URL)
    images.store.read(0)
    (first,) = cache.rglob("shard-000000.tar")
    same = first.parents[1] / f"{images.store._index.files[1].changed:x}/.shard-000001.tar.1-2-0.tmp"
    same.parent.mkdir(exist_ok=True)
    old, new = (first.with_name(f".shard-000003.tar.1-{number}-0.tmp") for number in range(2))
    for file in (same, old, new):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    images.store.read(30)  # of the second shard
    assert [file.exists() for file in (same, old, new)] == [False, False, True]  # the last may be under way


def test_remote__a_slow_shard_is_asked_for_again(storage, cache, monkeypatch):
    images, whole, release, asked = open_images(URL), RemoteShardFolder._download, threading.Event(), []

    def slow_at_first(self, name: str, target: Path) -> None:
        asked.append(target)
        if len(asked) == 2:  # the first shard tells how long one takes
            release.wait(10)
        whole(self, name, target)

    monkeypatch.setattr(RemoteShardFolder, "_download", slow_at_first)
    monkeypatch.setattr(place_module, "_MIN_PATIENCE", 0.05)
    images.store.read(0)
    begin = time.monotonic()
    assert number_of(images.store.read(60)) % 3 == images.labels[60]
    assert time.monotonic() - begin < 5
    assert len(asked) == 3
    release.set()
    while asked[1].exists() or list(cache.rglob("*.tmp")):  # the late answer is removed
        time.sleep(0.001)


def test_ahead__fetches_the_shards_of_the_next_steps(storage, cache, fetched, monkeypatch):
    images = open_images(URL)
    assert images.stream is not None
    stream = replace(images.stream, window=20)
    order = StreamOrder(stream, 0)
    used = list(dict.fromkeys(shards_of(stream, order[np.arange(len(images))]).tolist()))
    assert used == order.shards.tolist()
    ahead = ShardPrefetcher(images.store, np.arange(len(images)))
    monkeypatch.setattr(stream_module, "PREFETCHED_SHARDS", 1)
    ahead.request_shards(order, 0)
    wait_for(lambda: len(fetched) == 2)  # that of the step, and the next one
    assert sorted(fetched) == sorted(f"shard-{shard:06d}.tar" for shard in used[:2])
    ahead.request_shards(order, int(order.ends[0]))
    wait_for(lambda: len(fetched) == 3)
    assert len(set(fetched)) == 3
