"""Draws a test photograph of the chess boards beside its near twin among those to train on: `... BOARD CHECK_JSON`."""

import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw

HERE = Path(__file__).parent
WIDTH = 480
PARTS = ("test", "train")


def boxed(image: Path) -> Image.Image:
    """Return a photograph with its annotated boxes, black pieces in red, white ones in blue."""
    listed = json.loads((image.parent / "_annotations.coco.json").read_text())
    number = next(each["id"] for each in listed["images"] if each["file_name"] == image.name)
    names = {each["id"]: each["name"] for each in listed["categories"]}
    picture = Image.open(image).convert("RGB")
    draw = ImageDraw.Draw(picture)
    for each in listed["annotations"]:
        if each["image_id"] == number:
            left, top, width, height = each["bbox"]
            colour = "#b3261e" if names[each["category_id"]].startswith("black") else "#1f4e79"
            draw.rectangle((left, top, left + width, top + height), outline=colour, width=3)
    return picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)))


def main(board: Path, check: Path) -> None:
    """Write the picture of the first pair that `paucal check` names."""
    findings = json.loads(check.read_text())["findings"]
    groups = next(each["groups"] for each in findings if each["name"] == "near-duplicates-across-parts")
    pairs = [[next((name for name in group if name.startswith(part)), "") for part in PARTS] for group in groups]
    first = next(pair for pair in pairs if all(pair))
    pictures = [boxed(board / name) for name in first]
    both = Image.new("RGB", (2 * WIDTH + 12, pictures[0].height), "white")
    for place, picture in enumerate(pictures):
        both.paste(picture, (place * (WIDTH + 12), 0))
    both.save(HERE / "story_boxes_twins.jpg", quality=85)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
