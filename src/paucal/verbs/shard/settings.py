"""The settings of `paucal shard`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import LabelledDataSettings

_GROUP = "shards"


@dataclass(frozen=True)
class ShardSettings(LabelledDataSettings):
    """Every setting of `paucal shard`; the command line and `paucal.shard` share it."""

    output: str | None = option("new or empty folder for the shards, or a URL such as s3://bucket/set", group=_GROUP)
    format: Literal["tar", "parquet"] = option(
        "tar files in WebDataset's layout, or Parquet files in Hugging Face's, which are smaller for tiny images",
        "tar",
        group=_GROUP,
    )
    shard_size: int = option("size in MiB after which a shard is full", 256, group=_GROUP, low=1, high=1 << 16)
    shard_images: int = option(
        "number of images after which a shard is full", 10_000, group=_GROUP, low=1, high=1 << 24
    )
    unlabelled: bool = option("write all images below the folder, without labels", False, group=_GROUP)
    seed: int = option("seed of the random order in which images are written", 0, group=_GROUP, low=0, high=2**62)
