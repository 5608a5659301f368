"""`paucal predict --annotated`: write a copy of a video with its predictions drawn on the frames."""

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from paucal.runner.console import Console
from paucal.tasks.detection.detections import EDGES
from paucal.verbs.predict.video import VideoLedger, decode_frames, open_video, require_av, upright_frame
from paucal.verbs.predict.writing import NO_CLASS
from paucal.wording import counted

MIN_FONT_SIZE = 12  # in pixels


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
