"""A short report of what happened to the tensors of a file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paucal.wording import percent

SHOWN = 3  # names per line


@dataclass(frozen=True)
class LoadReport:
    """The result of loading weights, and their source.

    Attributes:
        source: Origin of the weights, as text.
        part: Place of the weights inside the file; empty if they are the whole file.
        share: Share of the elements of the model's parameters that were loaded, without the classifier (0 to 1).
        classifier: Treatment of the classifier, as text.
        loaded: Tensors loaded unchanged.
        adapted: Tensors changed to fit, and how.
        fresh: Tensors of the model that kept the values it was built with.
        unused: Tensors of the file that the model has no place for.
        program: Program that wrote the file, if the names of its tensors tell.
        method: Tensors of the file that belong to that program's training method, such as projection heads.
        input: Preprocessing of images that belongs to the weights, with the keys of `inputs.ImageInput`.
        undertrained: Whether the weights were trained on so few images that careful fine-tuning does not pay off.
    """

    source: str
    part: str
    share: float
    classifier: str
    loaded: tuple[str, ...] = ()
    adapted: Mapping[str, str] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    program: str = ""
    method: tuple[str, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    undertrained: bool = False

    def lines(self) -> list[str]:
        """Return sentences for the user: how much was loaded, then only what is unexpected."""
        origin = "; ".join(filter(None, (self.program and f"written by {self.program}", self.part)))
        part = f" ({origin})" if origin else ""
        count = len(self.loaded) + len(self.adapted)
        lines = [
            f"starts from {self.source}{part}: {count} tensors loaded, {rounded_down(self.share)} of the parameters "
            f"below the classifier; classifier: {self.classifier}"
        ]
        for change in dict.fromkeys(self.adapted.values()):
            names = [name for name, description in self.adapted.items() if description == change]
            lines.append(f"adapted: {some(names)}: {change}")
        mismatched = set(self.fresh) & set(self.unused)
        for names, description in (
            ([name for name in self.fresh if name in mismatched], "not loaded, since the shape differs"),
            ([name for name in self.fresh if name not in mismatched], "not loaded, since the file lacks them"),
            ([name for name in self.unused if name not in mismatched], "in the file, not used by the model"),
            (self.method, "left out, as part of the training method"),
        ):
            lines += [f"{description}: {some(names)}"] if names else []
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def short(self) -> dict[str, Any]:
        """Return the outcome without the names, for `summary.json`."""
        return {name: getattr(self, name) for name in ("source", "program", "part", "share", "classifier")}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for `init.json`."""
        lists = {name: list(value) for name, value in vars(self).items() if isinstance(value, tuple)}
        return {**vars(self), **lists, "adapted": dict(self.adapted)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "LoadReport":
        """Read the output of `to_dict`.

        Raises:
            TypeError: an entry is missing or unknown.
        """
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def some(names: Iterable[str]) -> str:
    """Return a few names and the number of the others.

    Example:
        >>> some(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    name_list = list(names)
    n_more = len(name_list) - SHOWN
    return ", ".join(name_list) if n_more <= 1 else f"{', '.join(name_list[:SHOWN])} and {n_more} more"


def rounded_down(share: float) -> str:
    """Return a share as a percentage that is never rounded up to 100 %.

    Example:
        >>> rounded_down(1.0), rounded_down(0.99996), rounded_down(0.5)
        ('100 %', '99.9 %', '50.0 %')
    """
    return percent(share, "g") if share == 1 else percent(int(share * 1000) / 1000)
