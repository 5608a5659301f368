"""A report on which tensors of a file were loaded into a model, adapted to the model or left out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paucal.wording import percent

SHOWN_NAMES = 3  # number of tensor names shown per line


@dataclass(frozen=True)
class LoadReport:
    """The result of loading weights into a model.

    Attributes:
        source: Origin of the weights, as text.
        part: Keys and prefix of the weights in the file, as text; empty if the weights are the whole file.
        share: Fraction (0 to 1) of the model's parameters that were loaded, by number of elements and without the
            classifier.
        classifier: Whether the classifier was loaded and why, as text.
        loaded: Names of the tensors that were loaded unchanged.
        adapted: Descriptions of how tensors were adapted before they were loaded, by tensor name.
        fresh: Names of the model's tensors that were not loaded and keep their initial values.
        unused: Names of the file's tensors that were not loaded.
        program: Program that wrote the file; empty if it is unknown.
        method: Names of the file's tensors that belong to the program's training method, such as projection heads.
        input: Preprocessing with which the weights were evaluated, as a dictionary of the fields of
            `checkpoints.WeightsPreprocessing`.
        undertrained: Whether the weights were trained on so few images that careful fine-tuning does not help.
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
        """Return the report as lines of text: what was loaded, followed by what was adapted or not loaded."""
        details = "; ".join(filter(None, (self.program and f"written by {self.program}", self.part)))
        details_text = f" ({details})" if details else ""
        count = len(self.loaded) + len(self.adapted)
        lines = [
            f"starts from {self.source}{details_text}: {count} tensors loaded, {percent_rounded_down(self.share)} of "
            f"the parameters below the classifier; classifier: {self.classifier}"
        ]
        for change in dict.fromkeys(self.adapted.values()):
            names = [name for name, description in self.adapted.items() if description == change]
            lines.append(f"adapted: {list_some(names)}: {change}")
        mismatched = set(self.fresh) & set(self.unused)
        for names, description in (
            ([name for name in self.fresh if name in mismatched], "not loaded, since the shape differs"),
            ([name for name in self.fresh if name not in mismatched], "not loaded, since they are not in the file"),
            ([name for name in self.unused if name not in mismatched], "in the file, but not in the model"),
            (self.method, "left out, since they belong to the training method"),
        ):
            lines += [f"{description}: {list_some(names)}"] if names else []
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_summary(self) -> dict[str, Any]:
        """Return the report without the names of tensors, for `summary.json`."""
        return {name: getattr(self, name) for name in ("source", "program", "part", "share", "classifier")}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, for `init.json`."""
        lists = {name: list(value) for name, value in vars(self).items() if isinstance(value, tuple)}
        return {**vars(self), **lists, "adapted": dict(self.adapted)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "LoadReport":
        """Return the report for the output of `to_dict`.

        Raises:
            TypeError: a field is missing or unknown.
        """
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def list_some(names: Iterable[str]) -> str:
    """Return names as text. More than four names are shortened to the first three and the number of further names.

    Example:
        >>> list_some(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    name_list = list(names)
    n_more = len(name_list) - SHOWN_NAMES
    return ", ".join(name_list) if n_more <= 1 else f"{', '.join(name_list[:SHOWN_NAMES])} and {n_more} more"


def percent_rounded_down(share: float) -> str:
    """Return a fraction (0 to 1) as a percentage that is rounded down, so that "100 %" means exactly 1.

    Example:
        >>> percent_rounded_down(1.0), percent_rounded_down(0.99996), percent_rounded_down(0.5)
        ('100 %', '99.9 %', '50.0 %')
    """
    return percent(share, "g") if share == 1 else percent(int(share * 1000) / 1000)
