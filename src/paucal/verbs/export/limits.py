"""The limits of `paucal export --max-size 5MB --max-ms 30`."""

import re
from dataclasses import dataclass

from paucal.export.comparison import Comparison
from paucal.runner.time_budget import seconds_of
from paucal.types import UserError
from paucal.verbs.export.settings import ExportSettings

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Limits:
    """Limits on the size and the time of a file.

    Attributes:
        size: Bytes; None for any size.
        milliseconds: Milliseconds for one image on one thread of this machine; None for any time.
    """

    size: int | None
    milliseconds: float | None

    def excess(self, found: Comparison) -> float:
        """Return the larger of size and time as a multiple of its limit; a file that fits has at most 1."""
        size = 0.0 if self.size is None else found.size / self.size
        return max(size, 0.0 if self.milliseconds is None else found.milliseconds[1] / self.milliseconds)

    def __str__(self) -> str:
        size = () if self.size is None else (f"{self.size / 1e6:g} MB",)
        return " and ".join((*size, *(() if self.milliseconds is None else (f"{self.milliseconds:g} ms per image",))))


def limits_of(settings: ExportSettings) -> Limits | None:
    """Return the limits that were given; None without any."""
    if settings.max_size is None and settings.max_ms is None:
        if settings.time is not None:
            raise UserError(
                "--time limits the training of the smaller model for --max-size or --max-ms: give one of "
                "those, or leave --time out."
            )
        return None
    if settings.time is not None:
        seconds_of(settings.time, "--time")
    if settings.int8:
        raise UserError("--max-size and --max-ms choose among files of 8 bits too: leave out --int8.")
    return Limits(None if settings.max_size is None else bytes_of(settings.max_size), settings.max_ms)


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as "5MB" or "800 KiB".

    Example:
        >>> bytes_of("5MB"), bytes_of("1.5 MiB")
        (5000000, 1572864)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Za-z]+)", text.strip())
    number = 0 if match is None else int(float(match[1]) * UNITS.get(match[2].upper(), 0))
    if number <= 0:
        raise UserError(f"--max-size is {text!r}, expected a size above 0 with its unit, such as 5MB or 800KB.")
    return number


def describe(found: Comparison) -> str:
    """Return the size and the time of a file as text."""
    return f"{found.size / 1e6:.2g} MB and {found.milliseconds[1]:.2g} ms per image"
