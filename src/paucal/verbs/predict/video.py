"""Read frames of videos, cameras and watched folders one at a time, so that memory use stays small."""

import importlib
import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from PIL import Image

from paucal.data.decode import DecodeOptions, UnreadableImage
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.reading import require_regular
from paucal.runner.console import Console
from paucal.runner.input_images import InputImages, open_sources
from paucal.types import UserError

_VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".wmv", ".3gp")
_CAMERA_PREFIX, _STREAM_PREFIXES = "camera:", ("rtsp://", "rtsps://")
# Pattern of a camera's location and its input format in FFmpeg, by operating system.
_CAMERA_INPUTS = {"Linux": ("/dev/video{}", "v4l2"), "Darwin": ("{}", "avfoundation"), "Windows": ("video={}", "dshow")}
_TIME_TOLERANCE = 1e-6  # largest rounding error of a timestamp, in seconds
POLL_SECONDS = 1.0  # time between two checks of a watched folder
MAX_UNREADABLE_SECONDS = 10.0  # an unreadable image file is skipped when it has not changed for this many seconds
MAX_MISSING_SECONDS = 1.0  # a video is incomplete if it lacks more than this of the length in its metadata


@dataclass(frozen=True, eq=False)
class VideoFrame:
    """A video frame, or an image file in a watched folder, to predict.

    Attributes:
        path: Path of the video or image file, or name of the camera.
        number: Position among all frames of the video, from 0; None for an image in a watched folder.
        time: Seconds since the first frame, as text; for cameras and watched folders, date and time in ISO format.
        image: Upright image; None if the file cannot be read.
    """

    path: str
    number: int | None
    time: str
    image: Image.Image | None


@dataclass
class VideoLedger:
    """Record of the frames read from a video."""

    frames: int = 0  # number of decoded frames
    sampled: int = 0  # number of frames selected by --every, including frames that an earlier call predicted
    seconds: float = 0.0  # seconds from the first to the last decoded frame
    problem: str = ""  # reason why frames are missing, as a clause


def is_video_source(source: str) -> bool:
    """Return whether `source` names a video file, a camera or a stream.

    Example:
        >>> is_video_source("clip.MP4"), is_video_source("camera:0"), is_video_source("photo.jpg")
        (True, True, False)
    """
    return source.lower().endswith(_VIDEO_SUFFIXES) or is_live(source)


def is_live(source: str) -> bool:
    """Return whether a source is a camera or a stream, which has no end."""
    return source.startswith((_CAMERA_PREFIX, *_STREAM_PREFIXES))


def require_av() -> Any:
    """Return the PyAV module; if it is not installed, raise a UserError with the command that installs it."""
    try:
        return importlib.import_module("av")
    except ImportError:
        raise UserError('videos and cameras need PyAV: pip install "paucal[video]".') from None


@contextmanager
def open_video(source: str) -> Iterator[Any]:
    """Open a video file, camera or stream, and yield its PyAV container, which has at least one video stream."""
    av, location, input_format = require_av(), source, None
    if source.startswith(_CAMERA_PREFIX):
        pattern, input_format = _CAMERA_INPUTS.get(platform.system(), _CAMERA_INPUTS["Linux"])
        location = pattern.format(source.removeprefix(_CAMERA_PREFIX))
    elif not is_live(source) and not require_regular(Path(source)).is_file():
        raise UserError(f"there is no video {source!r}: check the path.")
    try:
        container = av.open(location, format=input_format)
    except (av.error.FFmpegError, OSError, ValueError) as problem:
        reason = _failure_reason(problem)
        text = f"{source!r} cannot be opened as a video ({reason}): check it, or remove it from the call."
        if input_format is not None:
            text = f"{source!r} cannot be opened ({location}: {reason}): connect the camera, or give another camera."
        raise UserError(text) from None
    with container:
        if not container.streams.video:
            raise UserError(f"{source!r} has no video stream: give a video file.")
        container.streams.video[0].thread_type = "AUTO"
        yield container


def decode_frames(container: Any, ledger: VideoLedger) -> Iterator[tuple[float, Any]]:
    """Yield (time, frame) for each frame that can be decoded; the time is in seconds since the first frame.

    The ledger is updated with each frame; at the end, it records whether the video is complete.
    """
    stream, first, number = container.streams.video[0], None, 0
    for frame in _decodable_frames(container, stream, ledger):
        frame_time = frame.time if frame.time is not None else number / float(stream.average_rate or 25)
        first, number = (frame_time if first is None else first), number + 1
        ledger.frames, ledger.seconds = number, frame_time - first
        yield frame_time - first, frame
    stated_seconds, frame_seconds = (container.duration or 0) / 1e6, 1 / float(stream.average_rate or 1)
    if not ledger.problem and stated_seconds - ledger.seconds > MAX_MISSING_SECONDS + frame_seconds:
        ledger.problem = f"it ends after {ledger.seconds:.1f} of {stated_seconds:.1f} s"


def _decodable_frames(container: Any, stream: Any, ledger: VideoLedger) -> Iterator[Any]:
    """Yield the frames that can be decoded; skip damaged packets, and record the first error in the ledger."""
    error = require_av().error.FFmpegError

    def record(problem: Exception) -> None:
        text = f"it is damaged after {ledger.seconds:.1f} s ({_failure_reason(problem)})"
        ledger.problem = ledger.problem or text

    try:
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except error as problem:
                record(problem)
                continue
            yield from frames
    except error as problem:
        record(problem)


def read_frames(source: str, every: float, ledger: VideoLedger, after: int = -1) -> Iterator[VideoFrame]:
    """Yield the first frame at or after each multiple of `every` seconds of a video file; every frame if `every` is 0.

    `after` is the number of the last frame that already has a prediction; frames up to this number are only counted.
    """
    with open_video(source) as container:
        next_time = 0.0
        for seconds, frame in decode_frames(container, ledger):
            if seconds + _TIME_TOLERANCE < next_time:
                continue
            next_time = (math.floor((seconds + _TIME_TOLERANCE) / every) + 1) * every if every else 0.0
            ledger.sampled += 1
            if ledger.frames - 1 > after:
                yield VideoFrame(source, ledger.frames - 1, f"{seconds:.3f}", upright_frame(frame))
    if not ledger.frames:
        raise UserError(f"{source!r} has no frames that can be read: check the file, or remove it from the call.")


def read_live(source: str, every: float) -> Iterator[VideoFrame]:
    """Yield frames of a camera or a stream, at least `every` seconds apart, until the stream ends."""
    with open_video(source) as container:
        next_time = 0.0
        for number, (_, frame) in enumerate(decode_frames(container, VideoLedger())):
            if time.monotonic() >= next_time:
                next_time = time.monotonic() + every
                yield VideoFrame(
                    source, number, datetime.now().isoformat(timespec="milliseconds"), upright_frame(frame)
                )


def watch_images(
    folder: Path, known_paths: set[str], max_idle: float | None, decode_options: DecodeOptions, console: Console
) -> Iterator[VideoFrame | None]:
    """Yield new images in a folder and its subfolders, oldest first; after each check of the folder, yield None.

    The paths of the images are added to `known_paths`. An image file counts as complete when its size and modification
    time have not changed between two checks and the image can be decoded. If a file stays unreadable, its frame has no
    image. Watching ends after `max_idle` seconds without a new image; never if `max_idle` is None.
    """
    if not folder.is_dir():
        raise UserError(f"--watch: there is no folder {str(folder)!r}: create it, or give another folder.")
    previous_stamps, last_time = dict[str, tuple[int, int]](), time.monotonic()
    while True:
        stamps = _picture_stamps(folder, known_paths)
        complete = [path for path, stamp in stamps.items() if previous_stamps.get(path) == stamp]
        for path in sorted(complete, key=lambda path: (stamps[path][1], path)):
            is_last_attempt = time.time() - stamps[path][1] / 1e9 > MAX_UNREADABLE_SECONDS
            if (frame := _read_picture(path, decode_options, console, is_last_attempt)) is not None:
                known_paths.add(path)
                last_time = time.monotonic()
                yield frame
        previous_stamps = stamps
        yield None
        if max_idle is not None and time.monotonic() - last_time >= max_idle and not set(stamps) - known_paths:
            return
        time.sleep(POLL_SECONDS)


def _picture_stamps(folder: Path, known_paths: set[str]) -> dict[str, tuple[int, int]]:
    """Return the file sizes and modification times of the image files that are not in `known_paths`, by path.

    Hidden files are left out, since some programs write to a hidden file and rename the file when it is complete.
    """
    stamps = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if path in known_paths or name.startswith(".") or not name.lower().endswith(IMAGE_SUFFIXES):
                continue
            try:
                status = os.stat(path)
            except OSError:  # the file was just removed or renamed
                continue
            stamps[path] = (status.st_size, status.st_mtime_ns)
    return stamps


def _read_picture(
    path: str, decode_options: DecodeOptions, console: Console, is_last_attempt: bool
) -> VideoFrame | None:
    """Return an image file as a frame; if unreadable, return None, or at the last attempt a frame without image."""
    picture: Image.Image | None = None
    try:
        picture = InputImages(open_sources([path], console, decode_options), decode_options).read(0)
        picture.load()
    except (UnreadableImage, UserError, OSError) as problem:
        if not is_last_attempt:
            return None
        console.say(f"no prediction for an unreadable image: {problem}")
    return VideoFrame(path, None, datetime.now().isoformat(timespec="milliseconds"), picture)


def upright_frame(frame: Any) -> Image.Image:
    """Return a frame as an image, rotated upright according to the video's metadata."""
    picture = frame.to_image()
    return picture.rotate(frame.rotation, expand=True) if frame.rotation else picture


def _failure_reason(problem: Exception) -> str:
    return (getattr(problem, "strerror", None) or str(problem).split("\n")[0] or type(problem).__name__).rstrip(".")
