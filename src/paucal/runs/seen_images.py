"""Which images a run has learned from, by their keys."""

import csv
import io

from paucal.reading import read_text
from paucal.runs.folder import RunFolder

MOST_BYTES = 512 << 20  # five times the file of ImageNet's 1.3 million images


def trained_on(run: RunFolder) -> tuple[str, ...]:
    """Return the keys of the images that a run was trained on; none where its split is not stored.

    Raises:
        UserError: its split is no regular file, or too large.
    """
    if not run.split.is_file():
        return ()
    text = read_text(run.split, MOST_BYTES, errors="surrogateescape")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return tuple(row["key"] for row in rows if row.get("split") == "train" and row.get("key"))
