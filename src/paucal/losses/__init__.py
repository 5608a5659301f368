"""The loss of each training method as a function of tensors, and measures that are logged together with the losses."""

from paucal.distributed import all_reduce_mean, rank, world_size
from paucal.losses.diet import diet_loss
from paucal.losses.distillation import hard_distillation_loss
from paucal.losses.drloc import (
    DrLocReading,
    PairHead,
    draw_pairs,
    drloc_chance_level,
    drloc_loss,
    offset_cross_entropy,
    offset_l1,
    offset_variance_regression,
    pool_grid,
)
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
from paucal.losses.esvit import (
    EsvitLoss,
    EsvitTask,
    Similarity,
    esvit_loss,
    match_regions,
    moved_centre,
    region_targets,
    task_weights,
    view_pairs,
    view_targets,
)
from paucal.losses.feature_health import effective_rank, entropy, feature_spread
from paucal.losses.lejepa import LeJepaLoss, lejepa_loss
from paucal.losses.locality_guidance import guidance_loss, guide_energy
from paucal.losses.prototypes import Sharpness, Targets, prototype_cross_entropy
from paucal.losses.supervised import multi_label_loss, pixel_loss
from paucal.losses.token_labeling import TokenLabelLoss, token_label_loss
from paucal.losses.visreg import VisRegLoss, visreg_loss

__all__ = [
    "DrLocReading",
    "EsvitLoss",
    "EsvitTask",
    "LeJepaLoss",
    "PairHead",
    "Sharpness",
    "Similarity",
    "Targets",
    "TokenLabelLoss",
    "VisRegLoss",
    "all_reduce_mean",
    "class_counts",
    "diet_loss",
    "draw_pairs",
    "drloc_chance_level",
    "drloc_loss",
    "effective_rank",
    "entropy",
    "esvit_loss",
    "feature_spread",
    "gather_cells",
    "gather_pairs",
    "guidance_loss",
    "guide_energy",
    "hard_distillation_loss",
    "lejepa_loss",
    "match_regions",
    "moved_centre",
    "multi_label_loss",
    "offset_cross_entropy",
    "offset_l1",
    "offset_variance_regression",
    "pair_classes",
    "pair_index",
    "pair_targets",
    "permuted_pairs",
    "pixel_loss",
    "pool_grid",
    "prototype_cross_entropy",
    "rank",
    "region_targets",
    "sample_pairs",
    "task_weights",
    "token_label_loss",
    "view_pairs",
    "view_targets",
    "visreg_loss",
    "world_size",
]
