"""Averages of epochs: the best ones are kept, the mean is a mean, and nothing is averaged that makes it worse."""

import pytest
import torch
from torch import nn

from paucal.runs.weights import read_weights, save_weights
from paucal.training.averaging import KeptEpochs, extend_mean, greedy_soup


def row(step, score, loss=1.0):
    return {"epoch": step, "step": step, "val_top1": score, "val_loss": loss}


def linear(value):
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, value)
    return module


@pytest.fixture
def kept(tmp_path):
    return KeptEpochs(tmp_path, 2, "val_top1", "val_loss")


def test_kept_epochs__are_the_best_with_their_own_weights(kept):
    rows = []
    for step, score in enumerate([0.5, 0.9, 0.3, 0.7, 0.8], 1):
        rows.append(row(step, score))
        kept.after_epoch(rows, linear(step))
    found = kept.best_files(rows)
    assert [float(read_weights(path)["weight"]) for path in found] == [2.0, 5.0]
    assert set(found) == set(kept.files())


def test_kept_epochs__break_ties_by_loss_then_by_age(kept):
    rows = [row(1, 0.5, 2.0), row(2, 0.5, 1.0), row(3, 0.5, 1.0), row(4, 0.4, 0.1)]
    for count in range(1, 5):
        kept.after_epoch(rows[:count], linear(count))
    assert [float(read_weights(path)["weight"]) for path in kept.best_files(rows)] == [2.0, 3.0]


def test_kept_epochs__of_a_run_that_lost_some_are_those_of_one_that_did_not(kept):
    rows = [row(1, 0.5), row(2, 0.6), row(3, 0.7)]
    for count in range(1, 4):
        kept.after_epoch(rows[:count], linear(count))  # killed here, with the state of the second epoch saved last
    kept.after_epoch(rows, linear(3))
    assert [float(read_weights(path)["weight"]) for path in kept.best_files(rows)] == [3.0, 2.0]


def test_kept_epochs__leave_other_files_alone(kept, tmp_path):
    other = tmp_path / "epoch-of-mine.safetensors"
    save_weights(other, linear(0).state_dict())
    kept.after_epoch([row(1, 0.5)], linear(1))
    kept.clear()
    assert other.exists()
    assert not kept.files()


def test_kept_epochs__without_finite_loss_are_not_kept(kept):
    kept.after_epoch([row(1, 0.9, float("nan"))], linear(1))
    assert not kept.files()


def saved(tmp_path, values):
    files = []
    for number, value in enumerate(values):
        files.append(tmp_path / f"epoch-{number}.safetensors")
        save_weights(files[-1], {"w": torch.tensor([float(value)]), "n": torch.tensor(number)})
    return files


def test_greedy_soup__takes_what_does_not_make_it_worse(tmp_path):
    files = saved(tmp_path, [3.0, 9.0, 1.0])  # the goal is 2: 3 alone is off by 1, with 9 by 4, with 1 by nothing
    mean, chosen, score = greedy_soup(files, lambda state: (-abs(float(state["w"]) - 2), 0.0))
    assert chosen == [files[0], files[2]]
    assert float(mean["w"]) == 2.0
    assert score == (0.0, 0.0)
    assert int(mean["n"]) == 0  # what counts is not averaged


def test_mean_of__adds_one_more_to_a_mean():
    states = [{"w": torch.tensor([value])} for value in (1.0, 2.0, 6.0)]
    mean = extend_mean(extend_mean(states[0], 1, states[1]), 2, states[2])
    assert float(mean["w"]) == pytest.approx(3.0)
