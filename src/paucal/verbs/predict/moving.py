"""`paucal predict` on videos, cameras, and a watched folder."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from PIL import Image

from paucal.data.decode import Reading, UnreadableImage
from paucal.data.loader import inference_batch_size
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.export.reading import load_model, model_digest
from paucal.models.precision import GIVEN
from paucal.models.regression import RegressionCard
from paucal.models.tasks import DETECTION, SEGMENTATION, task_of
from paucal.models.trained import TrainedModel
from paucal.reading import named_path
from paucal.runner.clock import precise_duration
from paucal.runner.console import Console
from paucal.runner.input_images import Pictures, open_sources
from paucal.runner.time_budget import seconds_of
from paucal.runs.files import check_writable
from paucal.settings.options import check_ranges
from paucal.tasks.detection.model import load_detector
from paucal.types import UserError
from paucal.verbs.predict.annotating import annotate_video
from paucal.verbs.predict.answers import Prediction, csv_cells, csv_header
from paucal.verbs.predict.detection import HEADER, detect_image, object_cells, require_of_detectors
from paucal.verbs.predict.prediction_table import PredictionTable
from paucal.verbs.predict.regression import COLUMNS, number_cells, number_rows
from paucal.verbs.predict.settings import MovingSettings, OutputSettings, PredictSettings
from paucal.verbs.predict.video import Frame, VideoLedger, is_live, is_moving, read_frames, read_live
from paucal.wording import counted

EACH = "frame"  # value of --every for each frame
TIMED_BATCHES, NEAR_BEST = (1, 4, 16, 64), 0.95
Rows = Sequence[Sequence[object]]
POLL = 1.0  # seconds between two checks of the folder
PATIENCE = 10.0  # seconds without a change after which an unreadable picture is skipped
_Stamp = tuple[int, int]  # bytes and time of change


class FramePredictor:
    """A model that turns frames into rows of a table.

    `header` names the columns after the path and the time; `batch_size` is the number of frames per forward pass.
    """

    def __init__(self, run: str, settings: PredictSettings, wanted: OutputSettings, console: Console) -> None:
        self._predict_frames: Callable[[Sequence[Image.Image]], list[Rows]]
        if task_of(run) == DETECTION:
            detector, card, device = load_detector(run, settings.device)
            self.header, self.batch_size, self.device = list(HEADER[1:]), 1, str(device)
            self.reading = replace(card.preprocessing.reading, side=None)  # boxes are in pixels of the original
            self._predict_frames = lambda images: [
                object_cells(detect_image(detector, card, None, image, device)) for image in images
            ]
            return
        model = load_model(run, settings.device)
        model = model if settings.precision is None else model.at_precision(GIVEN[settings.precision].dtype)
        model = model.mirrored() if settings.mirror else model
        card, self.device, self.reading = model.card, str(model.device), model.card.preprocessing.reading
        self.batch_size = settings.batch_size or _fastest_batch(model, console)
        if isinstance(card, RegressionCard):
            self.header = [*COLUMNS[1:], *(f"p_{grade}" for grade in (card.grades.names if card.grades else ()))]
            self._predict_frames = lambda images: [
                [number_cells(row)[1:]] for row in number_rows(card, [None] * len(images), model.probabilities(images))
            ]
            return
        model.require_classifier()
        self.header = csv_header(card, wanted.top_k)[1:]
        self._predict_frames = lambda images: [
            [csv_cells(Prediction(None, card.classes, shares, card.thresholds), wanted.top_k)[1:]]
            for shares in model.probabilities(list(images))
        ]

    def rows(self, frames: Sequence[Frame]) -> Rows:
        """Return the rows of some frames: at least one per frame, so that the table shows which frames were read."""
        images = [frame.image for frame in frames if frame.image is not None]
        answers = iter(self._predict_frames(images) if images else [])
        rows: list[Sequence[object]] = []
        for frame in frames:
            begin = [frame.path, *([] if frame.number is None else [frame.number]), frame.time]
            frame_answers = [] if frame.image is None else next(answers)
            rows += [[*begin, *cells] for cells in frame_answers] or [[*begin, *[""] * len(self.header)]]
        return rows


def _fastest_batch(model: TrainedModel, console: Console) -> int:
    """Return the smallest batch that is nearly as fast per image as the fastest, by a short measurement."""
    height, width = model.card.preprocessing.image_size
    largest, speeds = inference_batch_size((height, width), model.device.type), {}
    for size in (size for size in TIMED_BATCHES if size <= largest):
        images = [Image.new("RGB", (width, height))] * size
        model.probabilities(images)  # warm-up
        start_time = time.perf_counter()
        model.probabilities(images)
        speeds[size] = size / max(time.perf_counter() - start_time, 1e-9)
    best = next(size for size, speed in speeds.items() if speed >= NEAR_BEST * max(speeds.values()))
    console.say(f"{counted(best, 'image')} at once: {speeds[best]:.3g} images/s of blank ones on {model.device}")
    return best


def predict_moving(
    run: str,
    paths: Sequence[str],
    settings: PredictSettings,
    wanted: OutputSettings,
    moving: MovingSettings,
    console: Console,
) -> None:
    """Classify the frames of videos or cameras, or new pictures in a folder, and write each row immediately."""
    for group in (settings, wanted, moving):
        check_ranges(group)
    interval = 0.0 if moving.every == EACH else seconds_of(moving.every, "--every")
    _check_request(run, paths, settings, wanted, moving)
    predictor = FramePredictor(run, settings, wanted, console)
    if predictor.reading.channels != 3:
        count = counted(predictor.reading.channels, "channel")
        raise UserError(f"this model reads {count}, but frames have three: give another model.")
    numbered = ["frame"] if moving.watch is None else []
    facts = {"model": model_digest(run), "--every": moving.every, "--mirror": settings.mirror, "--top-k": wanted.top_k}
    if settings.precision is not None:
        facts["--precision"] = settings.precision
    with PredictionTable(wanted.output, ["path", *numbered, "time", *predictor.header], facts) as table:
        if table.done:
            console.say(f"{wanted.output} has predictions already: continuing")
        try:
            if moving.watch is not None:
                _classify_watched(moving, predictor, table, console)
                return
            for source in paths:
                _classify_video(source, interval, predictor, table, settings, console)
        except KeyboardInterrupt:
            if table.part is not None:
                console.say(f"the predictions so far are in {wanted.output}: repeat the same call to continue")
            raise
        table.finish()
    if moving.annotated is not None and wanted.output is not None:
        table_path, copy_path = named_path(wanted.output), named_path(moving.annotated, "--annotated")
        annotate_video(paths[0], table_path, copy_path, console)


def _check_request(
    run: str, paths: Sequence[str], settings: PredictSettings, wanted: OutputSettings, moving: MovingSettings
) -> None:
    if moving.watch is not None and paths:
        raise UserError("--watch names the folder: leave the other PATHS out.")
    if moving.idle is not None and moving.watch is None:
        raise UserError("--idle is for --watch: leave it out.")
    if images := [path for path in paths if not is_moving(path)]:
        raise UserError(
            f"videos and images give different tables: leave {images[0]!r} out, or predict it in another call."
        )
    if task_of(run) == SEGMENTATION:
        raise UserError("masks of videos are not written: give images, or a model that classifies or finds objects.")
    if task_of(run) == DETECTION:
        require_of_detectors(settings)
    if wanted.format == "json" or any((wanted.features, wanted.pictures, wanted.sheet)) or settings.scales is not None:
        raise UserError(
            "videos, cameras and watched folders give a CSV table: leave --format, --features, --pictures, "
            "--sheet and --scales out."
        )
    if moving.annotated is not None:
        _check_copy(moving.annotated, paths, wanted.output)


def _check_copy(text: str, paths: Sequence[str], table: str | None) -> None:
    """Check that a video with its predictions can be written, before the predictions are made."""
    if len(paths) != 1 or is_live(paths[0]) or table is None:
        raise UserError("--annotated is a copy of one video file, drawn from its table: give one, and --output.")
    path = named_path(text, "--annotated")
    if path.exists() or path.suffix.lower() != ".mp4":
        raise UserError(f"--annotated: {text!r} must be a new file that ends in .mp4: give another name.")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder for {text!r}: make it, or choose another --annotated.")
    check_writable(path, "--annotated")


def _classify_watched(
    moving: MovingSettings, predictor: FramePredictor, table: PredictionTable, console: Console
) -> None:
    """Classify new pictures until the folder has been idle for long enough."""
    idle_seconds = None if moving.idle is None else seconds_of(moving.idle, "--idle")
    folder = named_path(str(moving.watch), "--watch")
    console.say(f"watching {folder}; press Ctrl-C to stop; the same call continues")
    source = watched_pictures(folder, set(table.done), idle_seconds, predictor.reading, console)
    _classify_frames(source, predictor, table, console)


def _classify_video(
    source: str,
    interval: float,
    predictor: FramePredictor,
    table: PredictionTable,
    settings: PredictSettings,
    console: Console,
) -> None:
    if is_live(source):
        _classify_frames(read_live(source, interval), predictor, table, console, at_once=True)
        return
    ledger = VideoLedger()
    _classify_frames(read_frames(source, interval, ledger, table.done.get(source, -1)), predictor, table, console)
    console.say(
        f"{source}: {counted(ledger.frames, 'frame')} in {ledger.seconds:.1f} s, {ledger.taken} of them answered"
    )
    if ledger.problem and settings.on_bad_image == "refuse":
        raise UserError(
            f"{source!r} is incomplete: {ledger.problem}; repeat the call with --on-bad-image skip to use the rest."
        )
    if ledger.problem:
        console.say(f"note: {source} is incomplete: {ledger.problem}")


def _classify_frames(
    frames: Iterable[Frame | None],
    predictor: FramePredictor,
    table: PredictionTable,
    console: Console,
    at_once: bool = False,
) -> None:
    """Classify frames batch by batch; a None among the frames, or `at_once`, ends a batch early."""
    count, busy = 0, 0.0
    for batch in _batches(frames, 1 if at_once else predictor.batch_size):
        start_time = time.perf_counter()
        table.add(predictor.rows(batch))
        count, busy = count + len(batch), busy + time.perf_counter() - start_time
    if count:
        speed = f"{count / max(busy, 1e-9):.3g} images/s on {predictor.device}"
        console.say(f"answered {counted(count, 'image')} in {precise_duration(busy)} ({speed})")


def _batches(frames: Iterable[Frame | None], size: int) -> Iterator[list[Frame]]:
    waiting: list[Frame] = []
    for frame in frames:
        if frame is not None:
            waiting.append(frame)
        if waiting and (frame is None or len(waiting) == size):
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def watched_pictures(
    folder: Path, known: set[str], idle: float | None, reading: Reading, console: Console
) -> Iterator[Frame | None]:
    """Yield new pictures below a folder, oldest first, and None after each check; add their paths to `known`.

    A picture counts as complete when its size and time have not changed between two checks and it can be decoded. A
    picture that stays unreadable is yielded without an image. Watching ends after `idle` seconds without a new picture;
    None for never.
    """
    if not folder.is_dir():
        raise UserError(f"--watch: there is no folder {str(folder)!r}: make it, or give another.")
    waiting, last = dict[str, _Stamp](), time.monotonic()
    while True:
        stamps = _picture_stamps(folder, known)
        complete = [path for path, stamp in stamps.items() if waiting.get(path) == stamp]
        for path in sorted(complete, key=lambda path: (stamps[path][1], path)):
            frame = _read_picture(path, reading, console, given_up=time.time() - stamps[path][1] / 1e9 > PATIENCE)
            if frame is not None:
                known.add(path)
                last = time.monotonic()
                yield frame
        waiting = stamps
        yield None
        if idle is not None and time.monotonic() - last >= idle and not set(stamps) - known:
            return
        time.sleep(POLL)


def _picture_stamps(folder: Path, predicted: set[str]) -> dict[str, _Stamp]:
    """Return the size and time of the pictures without predictions; hidden files are still being written."""
    stamps = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if path in predicted or name.startswith(".") or not name.lower().endswith(IMAGE_SUFFIXES):
                continue
            try:
                status = os.stat(path)
            except OSError:  # it was just removed or renamed
                continue
            stamps[path] = (status.st_size, status.st_mtime_ns)
    return stamps


def _read_picture(path: str, reading: Reading, console: Console, given_up: bool) -> Frame | None:
    """Return a picture; None if it cannot be read and may still be growing."""
    picture: Image.Image | None = None
    try:
        picture = Pictures(open_sources([path], console, reading), reading).read(0)
        picture.load()
    except (UnreadableImage, UserError, OSError) as problem:
        if not given_up:
            return None
        console.say(f"cannot be read, and has no prediction: {problem}")
    return Frame(path, None, datetime.now().isoformat(timespec="milliseconds"), picture)
