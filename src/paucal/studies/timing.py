"""Images per second of a study's models on this device, where each model is timed alternately with a reference model.

Forward passes of the two models alternate, so that other load on the machine slows down both models. The models are
compared by the median, over pairs of passes, of the ratio of the two times. Models are in evaluation mode and in
float32, and the images are already on the device.
"""

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paucal.backbones import BackboneSpec
from paucal.models.trained import usable_device
from paucal.rules.resolve import device_or_best, model_arguments
from paucal.runner.clock import end_time_text
from paucal.runner.console import Console
from paucal.studies.settings import StudySettings
from paucal.studies.study import Column, Row, Study
from paucal.types import UserError
from paucal.wording import counted, did_you_mean, first_line, format_duration

Step = Callable[[], object]  # function that makes one forward pass


@dataclass(frozen=True)
class TimingEffort:
    """How models are timed: number of images in a forward pass, and number of timed pairs of passes of two models."""

    images: int
    pairs: int


ON_CPU, ON_ACCELERATOR = TimingEffort(2, 5), TimingEffort(64, 15)


@dataclass(frozen=True)
class Quartiles:
    """The lower quartile, the median and the upper quartile of some numbers."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class ModelSpeed:
    """Images per second of a model, and their ratio to the reference model's (None for the reference model itself)."""

    rate: Quartiles
    ratio: Quartiles | None


@dataclass(frozen=True)
class ModelSpeeds:
    """The measured speed of each row's model, by the row's name."""

    speeds: Mapping[str, ModelSpeed | None]  # speed by row name; None if this device cannot run the model
    words: str  # sentence that describes the device and the measurement


def time_models(study: Study, settings: StudySettings, console: Console) -> ModelSpeeds:
    """Time the models of a study's rows, or of the rows that `--rows` names, and print their images per second."""
    rows_by_name = {row.name: row for row in study.rows if row.model}
    if settings.rows and (unknown := [name for name in settings.rows if name not in rows_by_name]):
        suggestion = f"{did_you_mean(unknown[0], rows_by_name)}: {'; '.join(rows_by_name)}"
        raise UserError(f"--rows: {study.name} has no row {unknown[0]!r}{suggestion}.")
    rows = [row for name, row in rows_by_name.items() if not settings.rows or name in settings.rows]
    device = usable_device(device_or_best(settings.device))
    effort = ON_CPU if device.type == "cpu" else ON_ACCELERATOR
    sentence = _describe_timing(study, rows, device, effort)
    console.say(sentence)
    timer = _ModelTimer(study, device, effort)
    try:
        seconds = timer.forecast(rows)
    except torch.OutOfMemoryError as problem:
        raise UserError(f"{device} has too little memory for the models of {study.name}: change --device.") from problem
    console.say(f"time: about {format_duration(seconds)}, until {end_time_text(seconds)}")
    speeds: dict[str, ModelSpeed | None] = {}
    for row in rows:
        try:
            speeds[row.name] = speed = timer.speed(row)
            console.say(f"{row.name}: {speed.rate.median:.2f} images per second")
        except (UserError, torch.OutOfMemoryError) as problem:
            speeds[row.name] = None
            console.say(f"{row.name} is not timed: {first_line(problem)}")
    return ModelSpeeds(speeds, sentence)


def timed_value(study: Study, row: Row, column: Column, timed: ModelSpeeds) -> tuple[Quartiles | None, str]:
    """Return (the value in a row and a column of speeds, ""), or (None, the reason why there is no value).

    The metric "throughput" is images per second on this device. "throughput_scaled" is comparable with the paper: the
    published number of the reference row, which other rows name as `against`, times the ratio of the two rows' images
    per second on this device.
    """
    if not row.model:
        return None, "quoted"
    if row.name not in timed.speeds:
        return None, "left out by --rows"
    speed = timed.speeds[row.name]
    if speed is None:
        return None, "does not run on this device"
    if column.metric == "throughput":
        return speed.rate, ""
    scale = _base_row(study, row).values[study.columns.index(column)]
    if not isinstance(scale, float):
        return None, "no published number of a reference row"
    ratio = speed.ratio or Quartiles(1.0, 1.0, 1.0)
    return Quartiles(scale * ratio.low, scale * ratio.median, scale * ratio.high), ""


def time_alternately(first: Step, second: Step, pairs: int) -> list[tuple[float, float]]:
    """Call two functions alternately; return the seconds of both calls for each pair, after one warm-up pair."""
    seconds = []
    for _ in range(pairs + 1):
        start = synchronized_time()
        first()
        between = synchronized_time()
        second()
        seconds.append((between - start, synchronized_time() - between))
    return seconds[1:]


def synchronized_time() -> float:
    """Wait until the accelerator has finished its work; return the current time of a monotonic clock in seconds."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of at least two numbers.

    Example:
        >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0])
        Quartiles(low=2.0, median=3.0, high=4.0)
    """
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(low, median, high)


class _ModelTimer:
    """Times the models of a study alternately with reference models; keeps the last reference model in memory."""

    def __init__(self, study: Study, device: torch.device, effort: TimingEffort) -> None:
        self._study, self._device, self._effort = study, device, effort
        self._kept: tuple[tuple[Any, ...], Step] | None = None
        self._measured: dict[tuple[Any, ...], ModelSpeed] = {}

    def forecast(self, rows: Sequence[Row]) -> float:
        """Estimate the seconds for timing all rows, from the time of one pass and the models' multiply-adds."""
        base = _base_row(self._study, rows[0])
        step = self._base_step(base)
        ((seconds, _),) = time_alternately(step, lambda: None, 1)
        models = self._study.models
        parts = {(self._model_key(row), self._model_key(_base_row(self._study, row))): row for row in rows}
        gmacs = sum(models[row.model].gmacs + models[_base_row(self._study, row).model].gmacs for row in parts.values())
        return (self._effort.pairs + 1) * gmacs / models[base.model].gmacs * seconds

    def speed(self, row: Row) -> ModelSpeed:
        """Time a row's model, or return the result of an earlier row with the same model."""
        base = _base_row(self._study, row)
        key = (self._model_key(row), self._model_key(base))
        if key not in self._measured:
            base_step, is_base = self._base_step(base), key[0] == key[1]
            step = base_step if is_base else self._make_step(row)
            seconds = time_alternately(step, base_step, self._effort.pairs)
            rate = quartiles([self._effort.images / row_seconds for row_seconds, _ in seconds])
            ratios = [base_seconds / row_seconds for row_seconds, base_seconds in seconds]
            self._measured[key] = ModelSpeed(rate, None if is_base else quartiles(ratios))
        return self._measured[key]

    def _base_step(self, base: Row) -> Step:
        key = self._model_key(base)
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, self._make_step(base))
        return self._kept[1]

    def _model_key(self, row: Row) -> tuple[Any, ...]:
        return row.model, row.args

    def _make_step(self, row: Row) -> Step:
        model = self._study.models[row.model]
        size, arguments = (model.side, model.side), model_arguments([*model.full.args, *row.args])
        with torch.random.fork_rng(devices=[]):
            spec = BackboneSpec(model.full.name, 0, image_size=size, arguments=arguments)
            network = spec.build().model.eval().to(self._device)
            images = torch.randn(self._effort.images, 3, *size).to(self._device)

        def step() -> None:
            with torch.inference_mode():
                network(images)

        return step


def _base_row(study: Study, row: Row) -> Row:
    return next(other for other in study.rows if other.name == (row.against or row.name))


def _describe_timing(study: Study, rows: Sequence[Row], device: torch.device, effort: TimingEffort) -> str:
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif device.type == "cpu":
        name = f"{name}, {counted(torch.get_num_threads(), 'thread')}"
    sides = " and ".join(str(side) for side in sorted({study.models[row.model].side for row in rows}))
    text = (
        f"{study.name}: timed on {device.type} ({name}), {counted(effort.images, 'image')} of {sides} pixels in a "
        f"pass, {effort.pairs} pairs of passes each"
    )
    full = ON_ACCELERATOR
    return text if effort == full else f"{text} (fewer than an accelerator's {full.images} and {full.pairs})"
