"""Images per second: who takes turns with whom, what counts, and where it puts a row on the published scale."""

from dataclasses import replace

import pytest
import torch

from paucal.runner.console import RecordingConsole
from paucal.studies import timing
from paucal.studies.descriptions import describe_status
from paucal.studies.numbers import collect_numbers
from paucal.studies.reading import studies
from paucal.studies.settings import StudySettings
from paucal.studies.study import Architecture, Column, Model, Row, Study
from paucal.studies.timing import (
    ModelSpeed,
    ModelSpeeds,
    Quartiles,
    TimingEffort,
    quartiles,
    time_alternately,
    time_models,
    timed_value,
)
from paucal.types import UserError

MODELS = {
    "one": Model(Architecture("vit_mini", ("depth=1",)), 0.02, 32),
    "deep": Model(Architecture("vit_mini", ("depth=24",)), 0.4, 32),
    "none": Model(Architecture("vit_mini", ("depht=1",)), 0.02, 32),
}
COLUMNS = (Column("scale", metric="throughput_scaled"), Column("here", metric="throughput"))
ROWS = (
    Row("plain", values=(1000.0, None), model="one"),
    Row("deep", values=(100.0, None), model="deep", against="plain"),
    Row("again", values=(100.0, None), model="deep", against="plain"),
    Row("broken", values=(5.0, None), model="none", against="plain"),
    Row("told", values=(7.0, None)),
)
STUDY = Study("timed", "t", "P", "here", "table", "count", COLUMNS, ROWS, MODELS)


def test_in_turns__counts_pairs_of_alternating_calls_after_the_first(monkeypatch):
    clock, calls = [0.0], []

    def step(name: str, seconds: float):
        def call() -> None:
            calls.append(name)
            clock[0] += seconds * len(calls)  # the machine becomes slower and slower

        return call

    monkeypatch.setattr(timing, "synchronized_time", lambda: clock[0])
    assert time_alternately(step("a", 1), step("b", 10), 2) == [(3, 40), (5, 60)]
    assert calls == ["a", "b"] * 3


def test_spread__is_the_median_between_the_quartiles():
    assert quartiles([1.0, 2.0, 4.0]) == Quartiles(1.5, 2.0, 3.0)


def test_times__are_paired_with_the_model_that_sets_the_scale(monkeypatch):
    monkeypatch.setattr(timing, "ON_CPU", TimingEffort(1, 3))
    built = []
    monkeypatch.setattr(timing._ModelTimer, "_make_step", counting(timing._ModelTimer._make_step, built))
    console, before = RecordingConsole(), torch.random.get_rng_state()
    found = time_models(STUDY, StudySettings(device="cpu"), console)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert list(found.speeds) == ["plain", "deep", "again", "broken"]
    plain, deep = found.speeds["plain"], found.speeds["deep"]
    assert plain is not None
    assert deep is not None
    assert plain.ratio is None
    assert deep.ratio is not None
    assert deep.ratio.median < 0.5  # 24 times the blocks
    assert deep.rate.low <= deep.rate.median <= deep.rate.high
    assert found.speeds["again"] is deep  # one model, timed once
    assert built == ["plain", "deep", "broken"]
    assert found.speeds["broken"] is None
    assert console.said[0] == found.words
    assert "1 image of 32 pixels in a pass, 3 pairs of passes each" in found.words
    assert "(fewer than an accelerator's 64 and 15)" in found.words
    assert console.said[1].startswith("time: about ")
    assert console.said[-1].startswith("broken is not timed: ")
    lines, _ = collect_numbers(STUDY, (), (), timed=found)
    by_place = {(line.row.name, line.column.name): line for line in lines}
    scaled = by_place["deep", "scale"].measured
    assert scaled is not None
    assert scaled.value == pytest.approx(1000 * deep.ratio.median)
    assert scaled.low == pytest.approx(1000 * deep.ratio.low)
    own = by_place["plain", "scale"].measured
    assert own is not None
    assert (own.value, own.low) == (1000.0, None)  # by definition
    assert by_place["broken", "here"].why == "does not run on this device"


def counting(step, built):
    def build(self, row):
        built.append(row.name)
        return step(self, row)

    return build


def test_values__say_why_there_is_none():
    timed = ModelSpeeds({"plain": ModelSpeed(Quartiles(9.0, 10.0, 11.0), None), "broken": None}, "")
    plain, deep, _, broken, told = ROWS
    assert timed_value(STUDY, plain, COLUMNS[1], timed) == (Quartiles(9.0, 10.0, 11.0), "")
    assert timed_value(STUDY, deep, COLUMNS[1], timed) == (None, "left out by --rows")
    assert timed_value(STUDY, broken, COLUMNS[0], timed) == (None, "does not run on this device")
    assert timed_value(STUDY, told, COLUMNS[0], timed) == (None, "quoted")
    bare = replace(STUDY, rows=(replace(plain, values=(None, None)), deep))
    assert timed_value(bare, bare.rows[0], COLUMNS[0], timed) == (None, "no published number of a reference row")


def test_times__of_rows_that_are_named(monkeypatch):
    monkeypatch.setattr(timing, "ON_CPU", TimingEffort(1, 2))
    assert list(time_models(STUDY, StudySettings(device="cpu", rows=["deep"]), RecordingConsole()).speeds) == ["deep"]
    with pytest.raises(UserError, match=r"--rows: timed has no row 'told': plain; deep; again; broken\."):
        time_models(STUDY, StudySettings(device="cpu", rows=["told"]), RecordingConsole())
    with pytest.raises(UserError, match="the device 'tpu' cannot be used on this machine"):
        time_models(STUDY, StudySettings(device="tpu"), RecordingConsole())


def test_forecast__is_in_proportion_to_multiply_adds_and_passes(monkeypatch):
    bench = timing._ModelTimer(STUDY, torch.device("cpu"), TimingEffort(1, 4))
    monkeypatch.setattr(timing, "time_alternately", lambda one, two, pairs: [(3.0, 0.0)])
    plain, deep, again, *_ = ROWS
    assert bench.forecast([plain]) == pytest.approx(5 * 3.0 * 2)  # in turns with itself
    assert bench.forecast([plain, deep, again]) == pytest.approx(5 * 3.0 * (2 + 21))


def test_throughput__of_esvit_is_timed_on_the_scale_of_deit():
    study = studies()["esvit-table-7"]
    assert describe_status(study) == "runnable (timed on this device, nothing is trained)"
    assert {row.against for row in study.rows} == {"", "DeiT-S/16"}
    assert [row.name for row in study.rows if not row.model] == []
    speeds = {row.name: ModelSpeed(Quartiles(1.0, 1.0, 1.0), Quartiles(0.5, 0.5, 0.5)) for row in study.rows}
    value, _ = timed_value(study, study.rows[8], study.columns[0], ModelSpeeds(speeds, ""))
    assert (study.rows[8].name, value) == ("Swin-T W7", Quartiles(503.5, 503.5, 503.5))
