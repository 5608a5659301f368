"""The settings of `paucal shard`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import LabelledDataSettings


@dataclass(frozen=True)
class ShardSettings(LabelledDataSettings):
    """All settings of `paucal shard`, used by the command line and by `paucal.shard`."""

    help_group = "shards"
    output: str | None = option("new or empty folder for the shards, or a URL such as s3://bucket/set")
    format: Literal["tar", "parquet"] = option(
        "tar files in WebDataset's layout, or Parquet files in Hugging Face's, which are smaller for tiny images", "tar"
    )
    shard_size: int = option("size in MiB after which a shard is full", 256, low=1, high=1 << 16)
    shard_images: int = option("number of images after which a shard is full", 10_000, low=1, high=1 << 24)
    unlabelled: bool = option("write all images below the folder, without labels", False)
    seed: int = option("seed of the random order in which images are written", 0, low=0, high=2**62)
