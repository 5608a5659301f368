import errno
import gc
import multiprocessing
import os
import random
import sys
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.types import _Stateful

from paucal.data.dataset import SampleKey, ViewDataset, collate
from paucal.data.decoded.in_memory import cache_images
from paucal.data.loader import inference_batch_size, make_eval_loader, make_ordered_loader, make_train_loader
from paucal.data.processes import start_method
from paucal.data.randomness import derive_seed
from paucal.data.sampler import StepSampler, steps_per_epoch
from paucal.data.sources.opening import open_images
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform, TrainTransform
from paucal.types import Batch, UserError

TRAIN = TrainTransform((16, 16), Augmentation(scale=(0.5, 1.0)), Normalisation())
SMALL = TrainTransform((8, 8), Augmentation(), Normalisation())


def _maps(index: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.full((2, 3), float(index))}


def _digits(count: int = 40):
    return open_images("digits").select(np.arange(count))


def _dataset(**options) -> ViewDataset:
    return ViewDataset(_digits(), [(TRAIN, 1), (SMALL, 2)], seed=7, with_geometry=True, label_maps=_maps, **options)


def _same(first: Batch, second: Batch) -> bool:
    tensors = [
        [batch.ids, batch.labels, *batch.views, *(batch.geometry or []), *(batch.label_maps or {}).values()]
        for batch in (first, second)
    ]
    return len(tensors[0]) == len(tensors[1]) and all(map(torch.equal, *tensors))


def test_view_dataset__fills_a_batch():
    batch = collate([_dataset()[SampleKey(0, index)] for index in (5, 2, 9)])
    assert batch.ids.tolist() == [5, 2, 9]
    assert batch.labels.tolist() == [5, 2, 9]  # the first digits are 0 to 9 in order
    assert [tuple(view.shape) for view in batch.views] == [(3, 3, 16, 16), (3, 3, 8, 8), (3, 3, 8, 8)]
    assert [tuple(t.shape) for t in batch.geometry] == [(3, 2, 3)] * 3
    assert batch.label_maps["tokens"][1].tolist() == [[2.0] * 3] * 2
    assert not torch.equal(batch.views[1], batch.views[2])


def test_view_dataset__leaves_out_what_was_not_asked_for():
    batch = collate([ViewDataset(_digits(), [(TRAIN, 1)], seed=0, with_labels=False)[SampleKey(0, 0)]])
    assert (batch.labels, batch.geometry, batch.label_maps) == (None, None, None)


def test_view_dataset__augmentation_depends_on_seed_epoch_index_and_repeat_only():
    dataset = _dataset()
    sample = dataset[SampleKey(1, 3, 0)].views[0]
    dataset[SampleKey(0, 1)], random.random(), torch.rand(3)  # what happened before does not count
    assert torch.equal(dataset[SampleKey(1, 3, 0)].views[0], sample)
    other_seed = ViewDataset(_digits(), [(TRAIN, 1)], seed=8)
    others = [dataset[SampleKey(2, 3, 0)], dataset[SampleKey(1, 3, 1)], other_seed[SampleKey(1, 3, 0)]]
    assert all(not torch.equal(other.views[0], sample) for other in others)


def test_view_dataset__leaves_the_global_generators_alone():
    torch.manual_seed(0), random.seed(0)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(0), random.seed(0)
    next(iter(make_train_loader(_dataset(), StepSampler(np.arange(40), 4, 2, 0))))
    assert (torch.rand(1).item(), random.random()) == expected


def test_view_dataset__refuses_labels_that_are_not_there():
    with pytest.raises(ValueError, match="with_labels is True, but some images of digits have no label"):
        ViewDataset(open_images("digits", labelled=False), [(TRAIN, 1)], seed=0)


def test_step_sampler__an_epoch_shows_each_image_once_in_a_new_order():
    indices = np.arange(100, 112)
    steps = list(StepSampler(indices, 4, 6, seed=1))
    epochs = [[key.index for step in steps[first : first + 3] for key in step] for first in (0, 3)]
    assert all(sorted(epoch) == indices.tolist() for epoch in epochs)
    assert epochs[0] != epochs[1] != indices.tolist()
    assert [key.epoch for step in steps for key in step] == [0] * 12 + [1] * 12
    assert steps == list(StepSampler(indices, 4, 6, seed=1))
    assert steps != list(StepSampler(indices, 4, 6, seed=2))


@pytest.mark.parametrize(("count", "batch"), [(40, 4), (43, 4), (5, 8)])
@pytest.mark.parametrize("repeats", [1, 3])
def test_step_sampler__two_processes_equal_one(count, batch, repeats):
    def steps(batch_size, rank, world):
        return list(StepSampler(np.arange(count), batch_size, 25, 3, rank=rank, world_size=world, repeats=repeats))

    whole = steps(2 * batch, 0, 1)
    first, second = steps(batch, 0, 2), steps(batch, 1, 2)
    assert whole == [a + b for a, b in zip(first, second, strict=True)]


@pytest.mark.parametrize("start", [0, 1, 7, 10, 25])
def test_step_sampler__starts_anywhere_and_keeps_its_length(start):
    whole = StepSampler(np.arange(43), 4, 25, 3)
    later = replace(whole, start=start)
    assert list(later) == list(whole)[start:]
    assert len(later) == len(whole) == 25


def test_step_sampler__drops_the_last_incomplete_batch():
    steps = list(StepSampler(np.arange(10), 4, 4, 0))
    assert [len(step) for step in steps] == [4] * 4
    assert [step[0].epoch for step in steps] == [0, 0, 1, 1]


def test_step_sampler__repeats_a_set_smaller_than_a_batch_with_new_augmentation():
    (step,) = StepSampler(np.arange(3), 8, 1, 0)
    assert sorted(np.bincount([key.index for key in step])) == [2, 3, 3]
    assert len(set(step)) == 8
    assert [key.repeat for key in step] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_step_sampler__repeated_augmentation():
    steps = list(StepSampler(np.arange(12), 6, 2, 0, repeats=3))
    keys = [key for step in steps for key in step]
    assert [key.repeat for key in keys] == [0, 1, 2] * 4
    assert len({key.index for key in keys}) == 4
    assert keys[0].index == keys[1].index == keys[2].index


def _naive_repeated(count: int, order: np.ndarray, world: int, batch: int, repeats: int) -> list[list[int]]:
    """An epoch as the published programs have it: every image repeated, dealt out to the processes in turn.

    Returns the images of each step over all processes, sorted.
    """
    draws = [int(image) for image in order for _ in range(repeats)][:count]
    dealt = [draws[rank::world] for rank in range(world)]
    steps = count // (world * batch)
    return [sorted(i for own in dealt for i in own[step * batch : (step + 1) * batch]) for step in range(steps)]


@pytest.mark.parametrize(("count", "batch"), [(40, 4), (43, 4), (12, 2)])
@pytest.mark.parametrize("repeats", [1, 2, 3, 5])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_step_sampler__repeats_as_a_naive_sampler_does(count, batch, repeats, world):
    steps = steps_per_epoch(count, world * batch)
    samplers = [
        StepSampler(np.arange(count), batch, 2 * steps, 5, rank=rank, world_size=world, repeats=repeats)
        for rank in range(world)
    ]
    for epoch in (0, 1):
        order = np.random.default_rng(derive_seed(5, epoch)).permutation(count)
        ours = zip(*(list(sampler)[epoch * steps : (epoch + 1) * steps] for sampler in samplers), strict=True)
        joint = [[key for own in step for key in own] for step in ours]
        naive = _naive_repeated(count, order, world, batch, repeats)
        assert [sorted(key.index for key in step) for step in joint] == naive
        assert all(key.epoch == epoch for step in joint for key in step)
        drawn = [(key.index, key.repeat) for step in joint for key in step]
        assert len(set(drawn)) == len(drawn)  # each time changed anew
        assert max(key.repeat for step in joint for key in step) == repeats - 1


@pytest.mark.parametrize("start", [1, 7, 11, 20])
def test_step_sampler__repeats_go_on_from_anywhere(start):
    whole = StepSampler(np.arange(43), 4, 25, 3, repeats=3, accumulate=2)
    assert list(replace(whole, start=start)) == list(whole)[start:]


def test_step_sampler__without_shuffling_keeps_the_order():
    steps = list(StepSampler(np.asarray([9, 4, 7, 1]), 2, 3, 0, shuffle=False))
    assert [[key.index for key in step] for step in steps] == [[9, 4], [7, 1], [9, 4]]


@pytest.mark.parametrize(
    "settings", [{"indices": np.arange(0)}, {"batch_size": 0}, {"rank": 1}, {"start": 11}, {"repeats": 0}]
)
def test_step_sampler__refuses_senseless_numbers(settings):
    with pytest.raises(ValueError, match=r"expected images|out of range"):
        StepSampler(**{"indices": np.arange(4), "batch_size": 2, "steps": 10, "seed": 0, **settings})


def test_steps_per_epoch():
    assert [steps_per_epoch(*pair) for pair in ((8, 4), (11, 4), (3, 4), (1, 1))] == [2, 2, 1, 1]


@pytest.fixture(scope="module")
def reference() -> list[Batch]:
    return list(make_train_loader(_dataset(), StepSampler(np.arange(40), 8, 12, 5)))


@pytest.mark.parametrize(("workers", "start"), [(0, 7), (1, 0), (2, 5)])
def test_train_loader__gives_the_same_batches_with_any_workers_from_any_start(reference, workers, start):
    sampler = StepSampler(np.arange(40), 8, 12, 5, start=start)
    loader = make_train_loader(_dataset(), sampler, workers)
    batches = list(loader)
    assert len(loader) == 12
    assert len(batches) == 12 - start
    assert all(map(_same, batches, reference[start:]))


@pytest.mark.slow  # a spawned worker imports torch and timm anew
def test_train_loader__works_with_spawned_workers_on_a_cache(reference):
    cached, _ = cache_images(_digits())
    dataset = ViewDataset(cached, [(TRAIN, 1)], seed=7)
    sampler = StepSampler(np.arange(40), 8, 1, 5)
    loader = make_train_loader(dataset, sampler, 1)
    loader.multiprocessing_context = multiprocessing.get_context("spawn")
    (batch,) = loader
    assert torch.equal(batch.ids, reference[0].ids)
    assert torch.equal(batch.views[0], next(iter(make_train_loader(dataset, sampler))).views[0])


def test_train_loader__is_resumable_for_lightning():
    loader = make_train_loader(_dataset(), StepSampler(np.arange(40), 8, 2, 5))
    assert isinstance(loader, _Stateful)
    loader.load_state_dict(loader.state_dict())
    assert loader.state_dict() == {}


def test_train_loader__workers_leave_ctrl_c_to_the_parent():
    loader = make_train_loader(_ReportDataset(), StepSampler(np.arange(4), 2, 1, 0), 1)
    loader.collate_fn = list
    assert next(iter(loader)) == [(True, 1), (True, 1)]


class _ReportDataset:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: SampleKey) -> tuple[bool, int]:
        import signal

        return signal.getsignal(signal.SIGINT) is signal.SIG_IGN, torch.get_num_threads()


def test_train_loader__names_an_image_that_breaks_during_training(make_folder):
    folder = make_folder("a/1.png", "b/1.png")
    images = open_images(folder)
    (folder / "b/1.png").unlink()
    loader = make_train_loader(ViewDataset(images, [(TRAIN, 1)], 0), StepSampler(np.arange(2), 2, 1, 0), 1)
    with pytest.raises(UserError, match=r"image b/1\.png cannot be decoded"):
        next(iter(loader))


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (3, 0), (1, 2)])
def test_eval_loader__shows_every_image_once(world, workers):
    images, indices = _digits(), np.arange(3, 40, 2)
    transform = EvalTransform((16, 16), Normalisation())
    ranks = [
        list(make_eval_loader(images, indices, transform, 4, workers, rank=rank, world_size=world))
        for rank in range(world)
    ]
    shown = [torch.cat([batch.ids for batch in batches]).tolist() for batches in ranks]
    assert all(ids == sorted(ids) for ids in shown)
    assert sorted(image for ids in shown for image in ids) == indices.tolist()
    first = ranks[0][0]
    assert torch.equal(first.labels, torch.from_numpy(images.labels)[first.ids])
    expected, _ = transform(images.store.read(3))
    assert torch.equal(first.views[0][0], expected)


def test_eval_loader__has_no_labels_where_one_is_missing():
    images = open_images("digits", labelled=False).select(np.arange(6))
    (batch,) = make_eval_loader(images, np.arange(6), EvalTransform((8, 8), Normalisation()), 6)
    assert batch.labels is None


def test_eval_loader__may_be_empty_on_a_rank():
    loader = make_eval_loader(_digits(), np.arange(1), EvalTransform((8, 8), Normalisation()), 4, rank=1, world_size=2)
    assert list(loader) == []


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than the machine has cores
@pytest.mark.parametrize(
    ("kind", "problem", "words"),
    [
        (
            "train",
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "Resource temporarily unavailable",
        ),
        ("eval", OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        ("train", RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_loaders__say_that_their_processes_cannot_be_started(kind, problem, words, monkeypatch):
    started, start = [], BaseProcess.start

    def refuse_the_third(self):
        started.append(self)
        if len(started) % 3 == 0:
            raise problem
        start(self)

    monkeypatch.setattr(BaseProcess, "start", refuse_the_third)
    dataset, sampler = _dataset(), StepSampler(np.arange(40), 8, 5, 0)
    message = rf"35 loader processes could not be started \({words}\): reduce --workers, or use --workers 0"
    if kind == "train":
        loader = make_train_loader(dataset, sampler, workers=35)
    else:
        loader = make_eval_loader(_digits(), np.arange(40), EvalTransform((16, 16), Normalisation()), 1, workers=35)
    with pytest.raises(UserError, match=message):
        next(iter(loader))
    assert len(started) == 3
    for process in started:
        if process.pid:
            process.join(10)
            assert not process.is_alive()


def test_loaders__pass_on_what_else_goes_wrong(monkeypatch):
    def fail(self):
        raise RuntimeError("something else")

    monkeypatch.setattr(BaseProcess, "start", fail)
    with pytest.raises(RuntimeError, match="something else"):
        next(iter(make_train_loader(_dataset(), StepSampler(np.arange(40), 8, 5, 0), workers=2)))


@pytest.mark.parametrize(
    ("chosen", "system", "expected"), [(None, "linux", "fork"), ("spawn", "linux", "spawn"), (None, "darwin", "first")]
)
def test_loader__forks_on_linux_unless_somebody_has_said_otherwise(chosen, system, expected, monkeypatch):
    """As of Python 3.14 Python does not by itself."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: chosen)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["first", "second"])
    monkeypatch.setattr(sys, "platform", system)
    assert start_method() == expected


def test_loader__starts_its_processes_in_that_way():
    view = EvalTransform((8, 8), Normalisation())
    loader = make_eval_loader(_digits(), np.arange(4), view, 2, workers=1)
    assert loader.multiprocessing_context.get_start_method() == start_method()  # type: ignore[union-attr]
    assert make_eval_loader(_digits(), np.arange(4), view, 2).multiprocessing_context is None


class Unreachable:
    """Is part of a cycle, so that only the garbage collector frees it; notes the process that does."""

    def __init__(self, notes: Path):
        self.notes, self.self = notes, self

    def __del__(self):
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()}\n")


class Collecting:
    """A dataset that collects garbage in the process that reads it."""

    def __getitem__(self, key):
        gc.collect()
        return key.index

    def __len__(self):
        return 4


def test_loader_process__frees_nothing_of_the_process_it_was_forked_from(tmp_path):
    # A pinned tensor of an earlier loader would abort it: CUDA cannot be used in a forked process.
    notes, kept = tmp_path / "notes", Unreachable(tmp_path / "notes")
    gc.disable()
    try:
        Unreachable(notes)
        loader = make_ordered_loader(Collecting(), np.arange(4), 1, list, workers=2)
        batches = iter(loader)
        first = next(batches)
        assert notes.read_text().split() == [str(os.getpid())]
        del kept  # garbage of the training process while its loaders run
        assert [first, *batches] == [[0], [1], [2], [3]]
    finally:
        gc.enable()
    gc.collect()
    assert set(notes.read_text().split()) == {str(os.getpid())}


def test_eval_loader__starts_no_more_processes_than_it_has_batches():
    for batch, count in ((40, 1), (20, 2), (4, 2)):
        transform = EvalTransform((16, 16), Normalisation())
        assert make_eval_loader(_digits(), np.arange(40), transform, batch, workers=2).num_workers == count
    empty = make_eval_loader(_digits(), np.arange(0), transform, 4, workers=2)
    assert (empty.num_workers, list(empty)) == (0, [])


def test_inference_batch_size__is_small_for_large_images_on_a_cpu():
    sizes = ((224, 224), "cpu"), ((32, 32), "cpu"), ((224, 224), "cuda")
    assert [inference_batch_size(size, device) for size, device in sizes] == [16, 256, 256]
