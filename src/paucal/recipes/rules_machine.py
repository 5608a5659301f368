"""How the device and its processes are chosen."""

from typing import Any

from paucal.recipes.facts import Facts
from paucal.recipes.rules_length import processes
from paucal.recipes.settings import TrainSettings

Choice = tuple[Any, str]


def device(facts: Facts, settings: TrainSettings) -> Choice:
    """The best there is."""
    return facts.device, "the best device of this machine"


def devices(facts: Facts, settings: TrainSettings) -> Choice:
    """All of a kind that work together; one process where the processor trains."""
    if facts.launched is not None:
        return facts.launched[0], "as the launcher has started"
    if settings.device == "cuda":
        return facts.devices, "all of this machine's"
    return 1, "one process uses all cores"


def nodes(facts: Facts, settings: TrainSettings) -> Choice:
    """As many as a launcher says."""
    return (facts.launched[1], "as the launcher has started") if facts.launched else (1, "this machine")


def strategy(facts: Facts, settings: TrainSettings) -> Choice:
    """The whole model on each of several devices: cutting it takes time, so that is for those who need the memory."""
    return ("ddp", "each device keeps the whole model") if processes(settings) > 1 else (None, "")


def precision(facts: Facts, settings: TrainSettings) -> Choice:
    """bfloat16 where it is native; float16 is never chosen, since it overflows on some small-data runs."""
    if settings.device == "cuda" and facts.bf16:
        return "bf16-mixed", "the GPU computes in bfloat16"
    return "32-true", "float32: safe everywhere"


def workers(facts: Facts, settings: TrainSettings) -> Choice:
    """One less than the cores beside an accelerator; none beside a processor that trains."""
    if settings.device == "cpu":
        return 0, "the processor is busy with training: loader processes would only slow it"
    chosen = min(8, facts.cores - 1)
    return chosen, f"{facts.cores} processor cores"
