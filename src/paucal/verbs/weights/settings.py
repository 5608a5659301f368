"""The settings of `paucal weights`."""

from dataclasses import dataclass

from paucal.settings.options import option


@dataclass(frozen=True)
class WeightsSettings:
    """Every setting of `paucal weights`: a description of the weights in a file, and the path of an archive."""

    help_group = "weights in a file"
    model: str | None = option("timm name of the model, with the tag if timm also publishes these weights")
    licence: str | None = option("name of the weights' licence, such as Apache-2.0")
    licence_text: str | None = option(
        "file with the text of the licence, to include in the archive; not needed for Apache-2.0"
    )
    source: str | None = option("who trained the weights and on which images (default: the name of the file)")
    mean: list[float] | None = option(
        "mean of each channel, subtracted from pixels from 0 to 1; give it with --std if the weights were not trained "
        "with timm's values, which are the default"
    )
    std: list[float] | None = option(
        "standard deviation of each channel, by which pixels are divided; see --mean", above=0
    )
    output: str | None = option(
        "path of the archive that 'paucal weights pack' writes (default: NAME.weights.zip)", group="archive"
    )
