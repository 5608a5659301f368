"""Draws labelled photographs above some without labels, in grey frames: `... ROOT`, as `write_few_labels` writes it."""

import sys
from pathlib import Path

from PIL import Image, ImageOps

HERE = Path(__file__).parent
SIDE, COLUMNS, ROWS, GAP = 96, 10, 3, 6


def main(root: Path) -> None:
    """Write the picture."""
    labelled = [sorted(folder.glob("*.jpg"))[0] for folder in sorted((root / "shop/train").iterdir())]
    others = sorted((root / "more").glob("*.jpg"))[: COLUMNS * ROWS]
    step = SIDE + GAP
    sheet = Image.new("RGB", (COLUMNS * step, (ROWS + 1) * step + 2 * GAP), "white")
    for place, path in enumerate([*labelled, *others]):
        picture = ImageOps.fit(ImageOps.exif_transpose(Image.open(path)).convert("RGB"), (SIDE, SIDE))
        row, column = divmod(place, COLUMNS)
        if row:
            picture = Image.blend(picture, Image.new("RGB", picture.size, "white"), 0.25)
        sheet.paste(picture, (column * step, row * step + (2 * GAP if row else 0)))
    sheet.save(HERE / "story_few.jpg", quality=82)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
