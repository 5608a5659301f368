"""What a study costs at full scale: an estimate by arithmetic, from the multiply-adds of its models.

Training a network on an image takes three times its forward pass: the pass itself, and twice as much for the gradients
of activations and of weights. Pre-training with two crops of 224 pixels and eight of 96 takes, in forward passes of 224
pixels, 2 + 8 (96 / 224)^2 = 3.5 of the student, three times for its gradients, and 2 of the teacher, 12.4 in all; the
heads come on top. A multiply-add is two operations.
"""

from collections.abc import Mapping

from paucal.studies.parts import DataSet
from paucal.studies.plan import Planned, plan
from paucal.studies.study import Study

RATE = 50e12  # operations a second that a GPU is taken to sustain on these models in bfloat16
PASSES = {"train": 3.0, "pretrain": 3 * (2 + 8 * (96 / 224) ** 2) + 2, "detect": 3.0, "segment": 3.0, "frozen": 1.0}
FORMULA = (
    "GPU hours = runs x epochs x images x passes x 2 x multiply-adds / 50 TFLOP/s, with 3 passes for an image that is "
    "trained on, 12.4 for one that is pre-trained with and 1 for one that is only looked at: an estimate for one GPU "
    "like an A100 in bfloat16"
)


def gpu_hours(study: Study, data_sets: Mapping[str, DataSet]) -> float:
    """Return hours of one GPU that all runs of a study take at full scale, by `FORMULA`; 0 where nothing is trained.

    Args:
        study: of any kind.
        data_sets: sizes of the sets that its rows and columns name.
    """
    if not study.trains:
        return 0.0
    runs = plan(study, "full", data_sets)
    return len(study.seeds) * sum(run_hours(study, one, data_sets[one.data].train) for one in runs)


def run_hours(study: Study, run: Planned, images: int) -> float:
    """Return hours of one GPU for one run at full scale on so many images."""
    operations = run.epochs * images * PASSES[study.kind] * 2e9 * study.models[run.row.model].gmacs
    return operations / RATE / 3600
