"""Writing pictures: into a new folder, under valid file names that are never used twice."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from paucal.explain.figures.pictures import as_bytes
from paucal.reading import named_path
from paucal.runner.outputs import refuse_inside_images
from paucal.runs import write_atomically, write_text
from paucal.runs.files import try_folder
from paucal.types import UserError

DEFAULT = Path("explanations")
LONGEST = 60
_ODD = re.compile(r"[^\w.-]+")


def settle_folder(output: str | None, sources: Sequence[Any], default: Path = DEFAULT) -> Path:
    """Return the folder for the output of a verb, which is empty or does not exist yet.

    It is the given one, or else the next numbered folder in `default`; it must not lie within a source of images.
    """
    if output is None:
        numbers = [int(path.name) for path in default.glob("*") if path.name.isdigit()]
        path = default / str(max(numbers, default=0) + 1)
    else:
        path = named_path(output)
    for source in sources:
        if isinstance(source, str) and Path(source).is_dir():
            refuse_inside_images(path, {"IMAGE": source})
    try_folder(path)
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"--output: {str(path)!r} holds files already: give another folder, or empty it.")
    return path


class Pictures:
    """Writes figures into a folder.

    Attributes:
        written: Files written so far.
    """

    def __init__(self, folder: Path, kind: Literal["png", "svg", "both"]) -> None:
        self.folder, self.kinds = folder, ("png", "svg") if kind == "both" else (kind,)
        self.written: list[Path] = []
        self._taken: set[str] = set()

    def write(self, label: str, figure: Figure) -> None:
        """Write a figure under a name made from its label."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = self._file_name(label)
        for kind in self.kinds:
            path = self.folder / f"{stem}.{kind}"
            content = as_bytes(figure, kind)
            write_atomically(path, lambda file, content=content: file.write(content))
            self.written.append(path)

    def write_table(self, name: str, text: str) -> None:
        """Write the numbers of a figure beside it; `name` must be a valid file name that no picture has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / f"{name}.csv", text)

    def _file_name(self, label: str) -> str:
        base = _ODD.sub("_", label.encode(errors="replace").decode())[-LONGEST:].strip("._") or "picture"
        name, number = base, 2
        while name.lower() in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name.lower())
        return name
