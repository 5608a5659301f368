"""The settings of `paucal weights`."""

from dataclasses import dataclass

from paucal.settings.options import option

_FILE, _PACK = "weights in a file", "archive"


@dataclass(frozen=True)
class WeightsSettings:
    """What is said of weights in a file, and where an archive is written."""

    model: str | None = option("timm name of their model, with the tag where timm knows these weights", group=_FILE)
    licence: str | None = option("name of their licence, such as Apache-2.0", group=_FILE)
    licence_text: str | None = option(
        "file with the text of the licence, which an archive carries; paucal has that of Apache-2.0", group=_FILE
    )
    source: str | None = option("who trained them and on what; by default the name of the file", group=_FILE)
    mean: list[float] | None = option(
        "mean of each channel that they expect, for pixels from 0 to 1; by default timm's", group=_FILE
    )
    std: list[float] | None = option("standard deviation of each channel, the same way", group=_FILE, above=0)
    output: str | None = option("of pack: the archive; by default NAME.weights.zip", group=_PACK)
