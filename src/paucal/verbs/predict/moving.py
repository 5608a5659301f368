"""`paucal predict` for videos, cameras and watched folders."""

import csv
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from paucal.data.loader import inference_batch_size
from paucal.export.reading import load_model, model_digest
from paucal.models.precision import EXPLICIT_CHOICES
from paucal.models.regression import RegressionCard
from paucal.models.tasks import DETECTION, SEGMENTATION, task_of
from paucal.models.trained import TrainedModel
from paucal.reading import expand_user_path
from paucal.runner.clock import precise_duration
from paucal.runner.console import Console
from paucal.runner.time_budget import parse_duration
from paucal.runner.writable import check_file_writable
from paucal.settings.options import check_ranges
from paucal.tasks.detection.detections import EDGES
from paucal.tasks.detection.model import load_detector
from paucal.types import UserError
from paucal.verbs.predict.answers import Prediction, csv_cells, csv_header
from paucal.verbs.predict.detection import HEADER, detect_image, object_table_rows, refuse_classifier_settings
from paucal.verbs.predict.journal import PredictionTable
from paucal.verbs.predict.regression import COLUMNS, regression_cells, regression_rows
from paucal.verbs.predict.settings import MovingSettings, OutputSettings, PredictSettings
from paucal.verbs.predict.video import (
    VideoFrame,
    VideoLedger,
    decode_frames,
    is_live,
    is_video_source,
    open_video,
    read_frames,
    read_live,
    require_av,
    upright_frame,
    watch_images,
)
from paucal.verbs.predict.writing import NO_CLASS
from paucal.wording import counted

EVERY_FRAME = "frame"  # value of --every that selects each frame
TIMED_BATCH_SIZES = (1, 4, 16, 64)  # numbers of images per forward pass among which the fastest is chosen
MIN_RELATIVE_SPEED = 0.95  # minimum speed of the chosen batch size, as a fraction of the highest speed
MIN_FONT_SIZE = 12  # in pixels
Rows = Sequence[Sequence[object]]


class FramePredictor:
    """Predicts video frames, and returns the predictions as table rows.

    `header` has the names of the columns that follow path, frame number and time; `batch_size` is the number of frames
    per forward pass.
    """

    def __init__(self, run: str, settings: PredictSettings, outputs: OutputSettings, console: Console) -> None:
        self._predict_frames: Callable[[Sequence[Image.Image]], list[Rows]]
        if task_of(run) == DETECTION:
            detector, card, device = load_detector(run, settings.device)
            self.header, self.batch_size, self.device = list(HEADER[1:]), 1, str(device)
            # Boxes are in pixels of the original image, so frames keep their size.
            self.decode_options = replace(card.preprocessing.decode_options, side=None)
            self._predict_frames = lambda images: [
                object_table_rows(detect_image(detector, card, None, image, device)) for image in images
            ]
            return
        model = load_model(run, settings.device)
        if settings.precision is not None:
            model = model.at_precision(EXPLICIT_CHOICES[settings.precision].dtype)
        model = model.mirrored() if settings.mirror else model
        card, self.device, self.decode_options = model.card, str(model.device), model.card.preprocessing.decode_options
        self.batch_size = _choose_batch_size(model, settings.batch_size, console)
        if isinstance(card, RegressionCard):
            self.header = [*COLUMNS[1:], *(f"p_{grade}" for grade in (card.grades.values if card.grades else ()))]
            self._predict_frames = lambda images: [
                [regression_cells(row)[1:]]
                for row in regression_rows(card, [None] * len(images), model.probabilities(images))
            ]
            return
        model.require_classifier()
        self.header = csv_header(card, outputs.top_k)[1:]
        self._predict_frames = lambda images: [
            [csv_cells(Prediction(None, card.classes, shares, card.thresholds), outputs.top_k)[1:]]
            for shares in model.probabilities(list(images))
        ]

    def rows(self, frames: Sequence[VideoFrame]) -> Rows:
        """Return the table rows of frames; a frame without detections has an empty row to mark the frame as done."""
        images = [frame.image for frame in frames if frame.image is not None]
        predictions = iter(self._predict_frames(images) if images else [])
        rows: list[Sequence[object]] = []
        for frame in frames:
            first_cells = [frame.path, *([] if frame.number is None else [frame.number]), frame.time]
            predicted_cells = [] if frame.image is None else next(predictions)
            rows += [[*first_cells, *cells] for cells in predicted_cells] or [[*first_cells, *[""] * len(self.header)]]
        return rows


def _choose_batch_size(model: TrainedModel, given: int | None, console: Console) -> int:
    """Return `given` if it is not None, else the smallest batch size whose speed is at least 95 % of the highest."""
    if given is not None:
        return given
    height, width = model.card.preprocessing.image_size
    max_size, speeds = inference_batch_size((height, width), model.device.type), {}
    for size in (size for size in TIMED_BATCH_SIZES if size <= max_size):
        images = [Image.new("RGB", (width, height))] * size
        model.probabilities(images)  # warm-up
        start_time = time.perf_counter()
        model.probabilities(images)
        speeds[size] = size / max(time.perf_counter() - start_time, 1e-9)
    chosen_size = next(size for size, speed in speeds.items() if speed >= MIN_RELATIVE_SPEED * max(speeds.values()))
    speed = f"{speeds[chosen_size]:.3g} images/s on {model.device}, measured with blank images"
    console.say(f"batch size {chosen_size}: {speed}")
    return chosen_size


def predict_moving(
    run: str,
    paths: Sequence[str],
    settings: PredictSettings,
    outputs: OutputSettings,
    moving: MovingSettings,
    console: Console,
) -> None:
    """Predict frames of videos or cameras, or new images in a folder, and write the rows after each batch."""
    for setting_group in (settings, outputs, moving):
        check_ranges(setting_group)
    interval = 0.0 if moving.every == EVERY_FRAME else parse_duration(moving.every, "--every")
    _check_request(run, paths, settings, outputs, moving)
    predictor = FramePredictor(run, settings, outputs, console)
    if predictor.decode_options.channels != 3:
        count = counted(predictor.decode_options.channels, "channel")
        raise UserError(f"this model reads {count}, but frames have three: give another model.")
    frame_columns = ["frame"] if moving.watch is None else []
    about = {"model": model_digest(run), "--every": moving.every, "--mirror": settings.mirror, "--top-k": outputs.top_k}
    if settings.precision is not None:
        about["--precision"] = settings.precision
    with PredictionTable(outputs.output, ["path", *frame_columns, "time", *predictor.header], about) as table:
        if table.done:
            console.say(f"{outputs.output} has predictions already: continuing")
        try:
            if moving.watch is not None:
                idle_seconds = None if moving.idle is None else parse_duration(moving.idle, "--idle")
                folder = expand_user_path(moving.watch, "--watch")
                console.say(f"watching {folder}; press Ctrl-C to stop; repeat the same call to continue")
                frames = watch_images(folder, set(table.done), idle_seconds, predictor.decode_options, console)
                _write_predictions(frames, predictor, table, console)
                return
            for source in paths:
                _predict_video(source, interval, predictor, table, settings, console)
        except KeyboardInterrupt:
            if table.folder_in_progress is not None:
                console.say(f"the predictions so far are in {outputs.output}: repeat the same call to continue")
            raise
        table.finish()
    if moving.annotated is not None and outputs.output is not None:
        table_path, copy_path = expand_user_path(outputs.output), expand_user_path(moving.annotated, "--annotated")
        annotate_video(paths[0], table_path, copy_path, console)


def _check_request(
    run: str, paths: Sequence[str], settings: PredictSettings, outputs: OutputSettings, moving: MovingSettings
) -> None:
    if moving.watch is not None and paths:
        raise UserError("--watch cannot be combined with PATHS: remove --watch or the PATHS.")
    if moving.idle is not None and moving.watch is None:
        raise UserError("--idle is only for --watch: remove --idle, or give --watch.")
    if images := [path for path in paths if not is_video_source(path)]:
        advice = f"remove {images[0]!r}, or predict it in another call"
        raise UserError(f"videos and images need different tables: {advice}.")
    if task_of(run) == SEGMENTATION:
        text = "segmentation of videos, cameras and watched folders is not supported"
        raise UserError(f"{text}: give images, or another model.")
    if task_of(run) == DETECTION:
        refuse_classifier_settings(settings)
    other_files = (outputs.features, outputs.pictures, outputs.sheet)
    if outputs.format == "json" or any(other_files) or settings.scales is not None:
        raise UserError(
            "predictions for videos, cameras and watched folders can only be written as a CSV table: remove --format "
            "json, --features, --pictures, --sheet and --scales."
        )
    if moving.annotated is not None:
        _check_copy(moving.annotated, paths, outputs.output)


def _check_copy(text: str, paths: Sequence[str], table: str | None) -> None:
    """Check that an annotated copy of a video can be written, before the predictions are computed."""
    if len(paths) != 1 or is_live(paths[0]) or table is None:
        raise UserError("--annotated needs exactly one video file, and --output for its table: give both.")
    path = expand_user_path(text, "--annotated")
    if path.exists() or path.suffix.lower() != ".mp4":
        raise UserError(f"--annotated: {text!r} must be a new file that ends in .mp4: give another name.")
    if not path.parent.is_dir():
        raise UserError(f"--annotated: the folder of {text!r} does not exist: create it, or give another path.")
    check_file_writable(path, "--annotated")


def _predict_video(
    source: str,
    interval: float,
    predictor: FramePredictor,
    table: PredictionTable,
    settings: PredictSettings,
    console: Console,
) -> None:
    if is_live(source):
        _write_predictions(read_live(source, interval), predictor, table, console, at_once=True)
        return
    ledger = VideoLedger()
    _write_predictions(read_frames(source, interval, ledger, table.done.get(source, -1)), predictor, table, console)
    count, sampled = counted(ledger.frames, "frame"), ledger.sampled
    console.say(f"{source}: {count} in {ledger.seconds:.1f} s, {sampled} of them with predictions")
    if ledger.problem and settings.on_bad_image == "refuse":
        advice = "repeat the call with --on-bad-image skip to use the frames that can be read"
        raise UserError(f"{source!r} is incomplete: {ledger.problem}; {advice}.")
    if ledger.problem:
        console.say(f"note: {source} is incomplete: {ledger.problem}")


def _write_predictions(
    frames: Iterable[VideoFrame | None],
    predictor: FramePredictor,
    table: PredictionTable,
    console: Console,
    at_once: bool = False,
) -> None:
    """Predict frames in batches; None among the frames ends a batch. With `at_once`, each frame is its own batch."""
    count, busy_seconds, batch = 0, 0.0, list[VideoFrame]()
    batch_size = 1 if at_once else predictor.batch_size
    for frame in chain(frames, [None]):
        if frame is not None:
            batch.append(frame)
        if batch and (frame is None or len(batch) == batch_size):
            start_time = time.perf_counter()
            table.add(predictor.rows(batch))
            count, busy_seconds = count + len(batch), busy_seconds + time.perf_counter() - start_time
            batch = []
    if count:
        speed = f"{count / max(busy_seconds, 1e-9):.3g} images/s on {predictor.device}"
        console.say(f"predicted {counted(count, 'image')} in {precise_duration(busy_seconds)} ({speed})")


def annotate_video(source: str, table: Path, output: Path, console: Console) -> None:
    """Write an .mp4 copy of a video; each frame shows the latest prediction in the CSV file `table`.

    The file is written under a temporary name and renamed when it is complete.
    """
    av = require_av()
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    temporary = output.with_name(f".{output.stem}.tmp{output.suffix}")
    numbered_rows = _frame_rows(source, table)
    shown_rows, following, ledger = [], next(numbered_rows, None), VideoLedger()
    try:
        with open_video(source) as container, av.open(str(temporary), "w") as copy:
            stream: Any = None
            for _, frame in decode_frames(container, ledger):
                while following is not None and following[0] <= ledger.frames - 1:
                    shown_rows, following = following[1], next(numbered_rows, None)
                picture = _draw_rows(upright_frame(frame), shown_rows)
                width, height = (side - side % 2 for side in picture.size)
                if stream is None:
                    stream = copy.add_stream(codec, rate=container.streams.video[0].average_rate or 25)
                    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                    stream.codec_context.time_base = frame.time_base
                new_frame = av.VideoFrame.from_image(picture.crop((0, 0, width, height)))
                new_frame.pts, new_frame.time_base = frame.pts, frame.time_base
                copy.mux(stream.encode(new_frame))
            if stream is not None:
                copy.mux(stream.encode())
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    console.say(f"wrote {output}: {counted(ledger.frames, 'frame')} with the latest prediction drawn on each")


def _frame_rows(source: str, table: Path) -> Iterator[tuple[int, list[dict[str, str]]]]:
    with table.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = (row for row in csv.DictReader(file) if row["path"] == source)
        for number, group in groupby(rows, key=lambda row: int(row["frame"])):
            yield number, list(group)


def _describe_prediction(row: dict[str, str]) -> str:
    if "labels" in row:
        return row["labels"] or NO_CLASS
    if "low" in row:
        value, low, high = (float(row[name]) for name in ("predicted", "low", "high"))
        return f"{value:.4g}" + (f" ({low:.4g} to {high:.4g})" if math.isfinite(high - low) else "")
    return f"{row['predicted']} {float(row['confidence'] or 0):.0%}"


def _draw_rows(picture: Image.Image, rows: Sequence[dict[str, str]]) -> Image.Image:
    draw, size = ImageDraw.Draw(picture), max(MIN_FONT_SIZE, picture.height // 20)
    line_width = max(1, picture.height // 240)
    for row in rows:
        if row.get("class"):
            left, top, right, bottom = (float(row[name]) for name in EDGES)
            draw.rectangle((left, top, right, bottom), outline="red", width=line_width)
            draw.text((left + 2, top + 2), f"{row['class']} {float(row['score']):.0%}", fill="red", font_size=size)
        elif "predicted" in row or "labels" in row:
            draw.rectangle((0, 0, picture.width, size + 6), fill="black")
            draw.text((4, 2), _describe_prediction(row), fill="white", font_size=size)
    return picture
