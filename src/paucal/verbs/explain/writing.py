"""Write the figures of an explanation into a new folder, under valid and unique file names."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from paucal.explain.figures.pictures import figure_to_bytes
from paucal.reading import expand_user_path
from paucal.runner.outputs import refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.types import UserError
from paucal.writing import write_atomically, write_text

DEFAULT = Path("explanations")  # parent of the numbered default folders
MAX_NAME_LENGTH = 60  # number of characters in a file name, without its suffix
_INVALID_CHARACTERS = re.compile(r"[^\w.-]+")


def choose_output_folder(output: str | None, sources: Sequence[Any], default: Path = DEFAULT) -> Path:
    """Return the folder `output`, by default the next numbered one in `default`.

    It must be empty, and must not lie inside a folder of images in `sources`.
    """
    if output is None:
        numbers = [int(path.name) for path in default.glob("*") if path.name.isdigit()]
        path = default / str(max(numbers, default=0) + 1)
    else:
        path = expand_user_path(output)
    for source in sources:
        if isinstance(source, str) and Path(source).is_dir():
            refuse_inside_images(path, {"IMAGE": source})
    check_folder_writable(path)
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"--output: {str(path)!r} is not empty: give another folder, or empty it.")
    return path


class FigureWriter:
    """Writes figures into a folder."""

    def __init__(self, folder: Path, kind: Literal["png", "svg", "both"]) -> None:
        self.folder, self.kinds = folder, ("png", "svg") if kind == "both" else (kind,)
        self.written: list[Path] = []  # files written so far
        self._used_names: set[str] = set()

    def write(self, label: str, figure: Figure) -> None:
        """Write a figure in each format to a file named after `label`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        valid_text = _INVALID_CHARACTERS.sub("_", label.encode(errors="replace").decode())
        base = valid_text[-MAX_NAME_LENGTH:].strip("._") or "picture"
        name, number = base, 2
        while name.lower() in self._used_names:
            name, number = f"{base}_{number}", number + 1
        self._used_names.add(name.lower())
        for kind in self.kinds:
            path = self.folder / f"{name}.{kind}"
            content = figure_to_bytes(figure, kind)
            write_atomically(path, lambda file, content=content: file.write(content))
            self.written.append(path)

    def write_table(self, name: str, text: str) -> None:
        """Write the CSV text `text` with the numbers of a figure to NAME.csv in the same folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / f"{name}.csv", text)
