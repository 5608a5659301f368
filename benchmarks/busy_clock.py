"""Does a run end on time if other programs start in the middle of it?

    python benchmarks/busy_clock.py --work W --minutes 5        # three runs: a quarter of an hour

Runs `paucal train`, `paucal detect` and `paucal segment` with `--time`, one after the other, as whole commands on
images that are made here. In the middle of each, programs that only count start, as many as there are cores, and run
until the end. Stored are the minutes of the command from its start to its end, and how its length was corrected. A run
is on time if it takes no more than 1.1 times what it was given.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from busy import COMMAND, environment, load
from measuring import store, surroundings
from paucal.cores import count_usable_cores
from paucal.training.keeper import checkpoint_changes

SIDE, IMAGES = 160, 240
LIMIT = 1.1  # times the time that was given
VERBS = ("train", "detect", "segment")
COLOURS = ((200, 60, 50), (60, 160, 70), (60, 80, 200))


def draw_images(folder: Path) -> dict[str, Path]:
    """Write images of shapes in three colours, and return them as each verb takes them."""
    generator = np.random.default_rng(0)
    places = {"train": folder / "photos", "detect": folder / "boxes", "segment": folder / "scenes"}
    boxes: list[dict[str, Any]] = []
    names = [{"id": number, "file_name": f"{number}.png", "width": SIDE, "height": SIDE} for number in range(IMAGES)]
    for number in range(IMAGES):
        noise = generator.integers(90, 160, (SIDE, SIDE, 3), dtype=np.uint8)
        image, mask, kind = Image.fromarray(noise), Image.new("L", (SIDE, SIDE)), number % 3
        for _ in range(generator.integers(1, 4)):
            side = int(generator.integers(24, 60))
            left, top = (int(value) for value in generator.integers(0, SIDE - side, 2))
            for picture, colour in ((image, COLOURS[kind]), (mask, kind + 1)):
                ImageDraw.Draw(picture).rectangle((left, top, left + side - 1, top + side - 1), fill=colour)
            box = {"bbox": [left, top, side, side], "area": side * side, "iscrowd": 0}
            boxes.append({"id": len(boxes) + 1, "image_id": number, "category_id": kind + 1, **box})
        files = {
            places["train"] / f"class{kind}" / f"{number}.png": image,
            places["detect"] / "images" / f"{number}.png": image,
            places["segment"] / "images" / f"{number}.png": image,
            places["segment"] / "masks" / f"{number}.png": mask,
        }
        for path, picture in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
    classes = [{"id": number, "name": f"class{number}"} for number in (1, 2, 3)]
    coco = {"images": names, "annotations": boxes, "categories": classes}
    (places["detect"] / "annotations.json").write_text(json.dumps(coco))
    return places


def timed_run(verb: str, data: Path, output: Path, seconds: float, others: int) -> dict[str, Any]:
    """Return how long a run took that was given so many seconds, with a load from its middle on."""
    words = [verb, str(data), "--time", f"{seconds:.0f}s", "--device", "cpu", "--output", str(output)]
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(first="pass"), *words],
        env=environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    ended = threading.Event()

    def disturb() -> None:
        if not ended.wait(seconds / 2):
            with load(others):
                ended.wait()

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    _, said = process.communicate()
    took = time.monotonic() - begin
    ended.set()
    disturbing.join()
    if process.returncode:
        raise SystemExit(f"{verb}: {said[-2000:]}")
    changes = checkpoint_changes(output / "checkpoints" / "last.ckpt")
    return {
        "verb": verb,
        "given_minutes": seconds / 60,
        "minutes": took / 60,
        "share": took / seconds,
        "in_time": took <= LIMIT * seconds,
        "changes": [vars(change) for change in changes],
    }


def main() -> None:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run")
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--others", type=int, help="programs beside it; by default as many as cores")
    parser.add_argument("--name", default="busy_clock", help="of the stored result")
    options = parser.parse_args()
    others = options.others or count_usable_cores()
    places = draw_images(options.work / "data")
    rows = []
    for number, verb in enumerate(options.verbs):
        rows.append(timed_run(verb, places[verb], options.work / f"{number}-{verb}", 60 * options.minutes, others))
        print(verb, rows[-1], flush=True)
    settings = {"minutes": options.minutes, "others": others, "cores": count_usable_cores()}
    store(options.name, {"surroundings": surroundings("cpu"), "settings": settings, "rows": rows})
    if not all(row["in_time"] for row in rows):
        raise SystemExit("a run did not end in its time")


if __name__ == "__main__":
    main()
