"""bfloat16 on a CPU: only where it was measured to be faster, and gives the same answers."""

import json
import platform

import pytest
import torch
from torch import nn

from paucal.models import precision
from paucal.models.precision import (
    PrecisionChoice,
    bfloat16_flags,
    choose_precision,
    cpu_name,
    decide_precision,
    measure_speed,
)

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Clock:
    """A network that takes `seconds` in float32, and `1 / speed` of that under autocast."""

    def __init__(self, monkeypatch, seconds, speed):
        self.now, self.seconds, self.speed, self.calls = 0.0, seconds, speed, []
        self.layer = nn.Linear(192, 5)
        monkeypatch.setattr(precision.time, "perf_counter", lambda: self.now)

    def __call__(self, images):
        low = torch.is_autocast_enabled("cpu")
        self.calls.append(low)
        self.now += self.seconds / (self.speed if low else 1.0)
        return self.layer(images.flatten(1))


@pytest.fixture
def able(tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision, "bfloat16_flags", lambda: ("avx512_bf16",))
    return tmp_path / "paucal" / "arithmetic.json"


def test_choice__on_a_processor_without_bfloat16_is_float32_without_a_measurement(able, monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_flags", lambda: ())
    run = Clock(monkeypatch, seconds=4.0, speed=9.0)
    assert choose_precision(run, IMAGES, "small") == PrecisionChoice(
        None, "float32: this CPU has no instructions for bfloat16"
    )
    assert (run.calls, able.exists()) == ([], False)


@pytest.mark.parametrize(("speed", "dtype"), [(1.29, None), (1.31, torch.bfloat16), (0.7, None)])
def test_choice__is_bfloat16_from_1_3_times_the_speed_on(able, monkeypatch, speed, dtype):
    run = Clock(monkeypatch, seconds=0.2, speed=speed)
    found = choose_precision(run, IMAGES, "small")
    assert (found.dtype, found.measured) == (dtype, True)
    assert f"{speed:.1f} times as fast" in found.reason
    assert run.now < 2.5  # seconds of measuring


def test_choice__measures_the_speed_once_for_each_network_and_size(able, monkeypatch):
    run = Clock(monkeypatch, seconds=0.2, speed=2.0)
    first = choose_precision(run, IMAGES, "small")
    calls = len(run.calls)
    assert choose_precision(run, IMAGES, "small") == first
    assert len(run.calls) == calls + 2  # the answers are compared each time, since the weights differ
    (name,) = json.loads(able.read_text())
    assert name.startswith(f"small, 3x8x8, torch {torch.__version__}, ")
    assert "avx512_bf16" in name
    monkeypatch.setattr(precision, "cpu_name", lambda: "another CPU")  # with the same folder
    choose_precision(run, IMAGES, "small")
    assert sum("another CPU" in key for key in json.loads(able.read_text())) == 1
    choose_precision(run, IMAGES[:, :, :4, :4].repeat(1, 1, 2, 2), "small")
    choose_precision(run, IMAGES, "other")
    assert len(json.loads(able.read_text())) == 3
    able.write_text("{damaged")
    assert choose_precision(run, IMAGES, "small").dtype is torch.bfloat16


def test_choice__changes_nothing_where_there_is_little_to_gain(able, monkeypatch):
    run = Clock(monkeypatch, seconds=0.4, speed=2.0)
    assert choose_precision(run, IMAGES, "small", count=99).dtype is None  # 9.9 seconds
    assert run.calls == [False]
    assert choose_precision(run, IMAGES, "small", count=101).dtype is torch.bfloat16
    quick = Clock(monkeypatch, seconds=0.016, speed=2.0)
    assert choose_precision(quick, IMAGES, "quick").dtype is None


def test_judge__asks_for_the_same_classes_and_nearly_the_same_outputs():
    exact = torch.tensor([[1.0, 0.98, 0.0], [0.0, 3.0, 1.0]])
    assert decide_precision(2.0, exact, exact + 0.001).dtype is torch.bfloat16
    other = decide_precision(2.0, exact, torch.tensor([[0.985, 0.99, 0.0], [0.0, 3.0, 1.0]]))
    assert (other.dtype, other.reason) == (None, "float32: bfloat16 changes the predicted class of some images")
    assert (
        decide_precision(2.0, exact, torch.tensor([[0.985, 0.99, 0.0], [0.0, 3.0, 1.0]]), classes=False).dtype
        is torch.bfloat16
    )
    far = decide_precision(2.0, exact, exact + torch.tensor([[0.0, 0.0, 0.2], [0.0, 0.0, 0.0]]))
    assert far.dtype is None
    assert "the outputs with bfloat16 differ (cosine similarity 0.99" in far.reason
    assert decide_precision(2.0, exact, torch.full((2, 3), torch.nan)).dtype is None


def test_speed__of_a_slow_network_takes_one_round(able, monkeypatch):
    run = Clock(monkeypatch, seconds=3.0, speed=1.5)
    assert measure_speed(run, IMAGES, "slow") == pytest.approx(1.5)
    assert run.calls == [False, True]


def test_flags__are_those_that_the_system_names(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "_CPUINFO", info)
    assert bfloat16_flags() == ()
    assert cpu_name() == platform.processor()
    info.write_text("model name : amx_bf16\nflags\t\t: fpu avx512_bf16 amx_bf16 sse\n")
    assert bfloat16_flags() == ("amx_bf16", "avx512_bf16")
    assert cpu_name() == "amx_bf16"
    info.write_text("Features\t: fp asimd bf16 svebf16\n")
    assert bfloat16_flags() == ("bf16", "svebf16")
    info.write_text("flags : fpu sse\n")
    assert bfloat16_flags() == ()
