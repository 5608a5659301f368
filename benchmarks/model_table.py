"""Measure every registered model and store the table that `paucal models` shows.

    python benchmarks/model_table.py            # all: about 15 minutes
    python benchmarks/model_table.py --ours     # measure paucal's own models again and keep the rest

Nothing is computed: models are built on the meta device, so the numbers depend on the versions only.
"""

import argparse
from pathlib import Path

import timm
import torch
from rich.progress import track

import paucal.models.table
from paucal.backbones.families.common.contract import PAPERS
from paucal.models.measuring import measure
from paucal.models.table import TABLE_FILE, ListedModel, read_table, write_table
from paucal.objectives import default_weight

TABLE = Path(paucal.models.table.__file__).with_name(TABLE_FILE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", action="store_true", help="measure only paucal's own models")
    names = timm.list_models()
    kept: dict[str, ListedModel] = {}
    if parser.parse_args().ours and TABLE.exists():
        kept = dict(read_table(TABLE.read_text(encoding="utf-8").splitlines()))
    todo = [name for name in names if name not in kept or name in PAPERS]
    for name in track(todo, "measuring"):
        kept[name] = measure(name, default_weight(name)[0])
    comment = f"measured on the meta device with timm {timm.__version__}, torch {torch.__version__.split('+')[0]}"
    write_table(TABLE, [(name, kept[name]) for name in names], comment)


if __name__ == "__main__":
    main()
