"""Rules for the device and the processes."""

from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice


def device(facts: DataAndMachine) -> Choice:
    """The best available device."""
    return facts.device, "the best device of this machine"


def devices(facts: DataAndMachine, device: str | None) -> Choice:
    """The number of processes started by a launcher, else all GPUs; one process on any other device."""
    if facts.launched is not None:
        return facts.launched[0], "as started by the launcher"
    if device == "cuda":
        return facts.devices, "all GPUs of this machine"
    return 1, "one process uses all cores"


def nodes(facts: DataAndMachine) -> Choice:
    """The number of nodes started by a launcher, else one."""
    return (facts.launched[1], "as started by the launcher") if facts.launched else (1, "this machine")


def strategy(processes: int) -> Choice:
    """A full copy of the model on each device; sharding is slower, and left to users who need the memory."""
    return ("ddp", "each device has a full copy of the model") if processes > 1 else (None, "")


def precision(facts: DataAndMachine, device: str | None) -> Choice:
    """bfloat16 if it is native; never float16, which overflows in some small-data runs."""
    if device == "cuda" and facts.bf16:
        return "bf16-mixed", "the GPU computes in bfloat16"
    return "32-true", "float32: safe everywhere"


def workers(facts: DataAndMachine, device: str | None) -> Choice:
    """One less than the CPU cores, at most 8, with an accelerator; none for training on the CPU."""
    if device == "cpu":
        return 0, "the CPU is busy with training: loader processes would slow it down"
    return min(8, facts.cores - 1), f"{facts.cores} processor cores"


PROCESSES = (device, devices, nodes, strategy)
COMPUTE = (precision, workers)
