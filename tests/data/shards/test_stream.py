import numpy as np
import pytest

from data.shards.made_sets import shards_of
from paucal.data.randomness import derive_seed
from paucal.data.sampler import StepSampler
from paucal.data.shards.stream import Stream, StreamOrder, concatenate_streams, is_streamed, window_size
from paucal.data.string_arrays import RepeatedStrings, StringArray, argsort_strings, take_strings


def made_stream(shards: int = 7, each: int = 60, block: int = 10, window: int = 64) -> Stream:
    numbers = np.repeat(np.arange(shards), each).astype(np.int32)
    blocks = (np.arange(shards * each) // block).astype(np.int32)
    return Stream.from_blocks(numbers, blocks, window)


def ordered(stream: Stream, seed: int) -> np.ndarray:
    return StreamOrder(stream, seed)[np.arange(len(stream))]


def naive_order(stream: Stream, generator: np.random.Generator) -> list[int]:
    shard_ranks = generator.permutation(stream.shards.max() + 1).tolist()
    block_ranks = generator.permutation(stream.blocks.max() + 1).tolist()
    images, line = np.arange(len(stream)), []
    shards, blocks = shards_of(stream, images), stream.blocks[np.searchsorted(stream.ends, images, side="right")]
    for rank in range(len(shard_ranks)):
        mine = [n for n in range(len(stream)) if shards[n] == shard_ranks.index(rank)]
        for place in range(len(block_ranks)):
            line += [n for n in mine if blocks[n] == block_ranks.index(place)]
    for first in range(0, len(line), stream.window):
        piece = np.asarray(line[first : first + stream.window])
        generator.shuffle(piece)
        line[first : first + stream.window] = piece.tolist()
    return line


def test_order__is_that_of_a_naive_loop():
    stream = made_stream()
    assert ordered(stream, 3).tolist() == naive_order(stream, np.random.default_rng(3))
    chosen = np.random.default_rng(0).permutation(420)[:300]  # in any order, so that blocks are in many pieces
    some = stream.take(chosen)
    assert ordered(some, 4).tolist() == naive_order(some, np.random.default_rng(4))


def test_order__is_the_same_from_any_place():
    order, whole = StreamOrder(made_stream(), 3), ordered(made_stream(), 3)
    for first in (300, 60, 0, 410):
        places = np.arange(first, min(420, first + 70))
        assert order[places].tolist() == whole[places].tolist()


def test_order__shows_each_image_once_and_reads_few_shards_at_a_time():
    stream = made_stream()
    order = ordered(stream, 0)
    assert sorted(order.tolist()) == list(range(420))
    per_window = [set(shards_of(stream, order[first : first + 64]).tolist()) for first in range(0, 420, 64)]
    assert max(map(len, per_window)) <= 3  # 64 images of shards of 60
    everywhere = np.random.default_rng(0).permutation(420)[:64]
    assert len(set(shards_of(stream, everywhere).tolist())) == 7


def test_order__mixes_within_a_window():
    stream = made_stream(window=420)
    order = ordered(stream, 0)
    assert (np.diff(order) == 1).mean() < 0.05


def test_order__of_some_of_the_images_keeps_the_places_of_the_rest():
    stream = made_stream()
    chosen = np.flatnonzero(np.arange(420) % 5 != 0)
    order = ordered(stream.take(chosen), 1)
    assert sorted(order.tolist()) == list(range(len(chosen)))


def sampler(start: int = 0, rank: int = 0, world: int = 1, batch: int = 8) -> StepSampler:
    stream = made_stream()
    chosen = np.flatnonzero(np.arange(420) % 7 != 0)
    return StepSampler(chosen, batch, 100, 5, start=start, rank=rank, world_size=world, stream=stream.take(chosen))


def test_sampler__follows_seed_and_epoch_alone():
    steps = list(sampler())
    per_epoch = 360 // 8
    first, second = ([key.index for step in steps[per_epoch * n : per_epoch * (n + 1)] for key in step] for n in (0, 1))
    stream, chosen = made_stream(), np.flatnonzero(np.arange(420) % 7 != 0)
    for epoch, found in enumerate((first, second)):
        order = ordered(stream.take(chosen), derive_seed(5, epoch))
        assert found == chosen[order].tolist()
    assert first != second
    assert sorted(first) == sorted(second) == chosen.tolist()


@pytest.mark.parametrize("start", [0, 1, 44, 45, 46, 99, 100])
def test_sampler__goes_on_anywhere_as_if_it_had_not_stopped(start):
    assert list(sampler(start=start)) == list(sampler())[start:]


def test_sampler__two_processes_see_together_what_one_sees_with_twice_the_batch():
    both = [first + second for first, second in zip(sampler(rank=0, world=2), sampler(rank=1, world=2), strict=True)]
    assert both == list(sampler(batch=16))
    epoch = [key.index for step in both[: 360 // 16] for key in step]
    assert len(epoch) == len(set(epoch)) == 22 * 16


def test_sample__lies_in_few_runs_spread_over_all():
    stream = made_stream(shards=40, each=250)
    found = stream.sample(320)
    assert len(found) == 320
    assert (np.diff(found) != 1).sum() == 31
    assert len(set(shards_of(stream, found).tolist())) == 32
    assert stream.sample(20_000).tolist() == list(range(10_000))


def test_blocks__end_with_their_shard():
    stream = Stream.from_shards([300, 0, 256], 64)
    assert np.diff(stream.ends, prepend=0).tolist() == [256, 44, 256]
    assert stream.shards.tolist() == [0, 0, 2]


def test_joined_stream__counts_a_set_that_is_decoded_as_one_shard():
    assert concatenate_streams([None, None], [3, 4]) is None
    joined = concatenate_streams([made_stream(shards=2, each=20), None], [40, 300])
    assert joined is not None
    assert np.unique(joined.shards).tolist() == [0, 1, 2]
    assert np.diff(joined.ends, prepend=0).tolist() == [10, 10, 10, 10, 256, 44]
    assert np.unique(joined.blocks).tolist() == [0, 1, 2, 3, 4, 5]


def test_rules__of_what_is_streamed_and_how_large_a_window_is():
    assert [is_streamed(*one) for one in [(199_999, 0), (200_000, 0), (10, 8 << 30)]] == [False, True, True]
    assert [window_size(mean) for mean in (1, 10_000, 1e9)] == [65536, 26843, 2048]


def test_texts__are_the_strings_they_were_made_of():
    strings = ["b", "", "ä", "bytes\udce3", "a" * 300]
    texts = StringArray.from_strings(strings)
    assert list(texts) == strings
    assert [texts[n] for n in range(5)] == strings
    assert list(texts[1:4]) == strings[1:4]
    assert list(take_strings(texts, np.array([4, 0]))) == take_strings(strings, np.array([4, 0])) == ["a" * 300, "b"]
    assert list(StringArray.from_buffers(*texts.take(np.array([3, 2])).to_buffers())) == ["bytes\udce3", "ä"]
    assert argsort_strings(texts[:3]).tolist() == argsort_strings(strings[:3]).tolist() == [1, 0, 2]
    assert list(StringArray.numbered(["x", "y"], [2, 1])) == ["x#0", "x#1", "y#0"]


def test_repeated__is_a_short_list():
    parts = RepeatedStrings(("train", "test"), np.array([1, 0, 0]))
    assert list(parts) == ["test", "train", "train"]
    assert (parts[0], len(parts), list(parts[1:]), set(parts)) == ("test", 3, ["train"] * 2, {"train", "test"})
    assert (np.asarray(parts) == np.asarray(["test", "train", "train"])).all()


def test_window_size__has_limits():
    assert (window_size(110_000), window_size(2_000)) == (2440, 65536)


def test_stream__of_shards_has_blocks_of_256_images():
    assert Stream.from_shards([300, 0, 256], window=64).ends.tolist() == [256, 300, 556]
