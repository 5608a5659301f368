from paucal.losses.collectives import all_reduce_mean, rank, world_size
from paucal.losses.drloc import (
    DrLocReading,
    PairHead,
    draw_pairs,
    drloc_loss,
    offset_cross_entropy,
    offset_l1,
    offset_variance_regression,
    pool_grid,
)
from paucal.losses.drloc_chance import drloc_chance_level
from paucal.losses.drloc_targets import (
    class_counts,
    gather_cells,
    gather_pairs,
    pair_classes,
    pair_index,
    pair_targets,
    permuted_pairs,
    sample_pairs,
)

__all__ = [
    "DrLocReading",
    "PairHead",
    "all_reduce_mean",
    "class_counts",
    "draw_pairs",
    "drloc_chance_level",
    "drloc_loss",
    "gather_cells",
    "gather_pairs",
    "offset_cross_entropy",
    "offset_l1",
    "offset_variance_regression",
    "pair_classes",
    "pair_index",
    "pair_targets",
    "permuted_pairs",
    "pool_grid",
    "rank",
    "sample_pairs",
    "world_size",
]
