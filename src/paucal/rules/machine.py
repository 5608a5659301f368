"""How the device and its processes are chosen."""

from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice


def device(facts: DataAndMachine) -> Choice:
    """The best available device."""
    return facts.device, "the best device of this machine"


def devices(facts: DataAndMachine, device: str | None) -> Choice:
    """The number that a launcher has started, else all GPUs; one process on any other device."""
    if facts.launched is not None:
        return facts.launched[0], "as the launcher has started"
    if device == "cuda":
        return facts.devices, "all of this machine's"
    return 1, "one process uses all cores"


def nodes(facts: DataAndMachine) -> Choice:
    """The number of nodes that a launcher has started, else one."""
    return (facts.launched[1], "as the launcher has started") if facts.launched else (1, "this machine")


def strategy(devices: int | None, nodes: int | None) -> Choice:
    """The whole model on each of several devices: sharding takes time, and is left to users who need the memory."""
    several = (devices or 1) * (nodes or 1) > 1
    return ("ddp", "each device keeps the whole model") if several else (None, "")


def precision(facts: DataAndMachine, device: str | None) -> Choice:
    """bfloat16 where it is native; float16 is never chosen, since it overflows on some small-data runs."""
    if device == "cuda" and facts.bf16:
        return "bf16-mixed", "the GPU computes in bfloat16"
    return "32-true", "float32: safe everywhere"


def workers(facts: DataAndMachine, device: str | None) -> Choice:
    """One less than the CPU cores, at most 8, beside an accelerator; none if the CPU trains."""
    if device == "cpu":
        return 0, "the processor is busy with training: loader processes would only slow it"
    chosen = min(8, facts.cores - 1)
    return chosen, f"{facts.cores} processor cores"


PROCESSES = (device, devices, nodes, strategy)
ARITHMETIC = (precision, workers)
