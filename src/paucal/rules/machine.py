"""Rules that choose the device, the number of processes and the precision."""

from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice


def device(facts: DataAndMachine) -> Choice:
    """Choose the best available device."""
    return facts.device, "the best device of this machine"


def devices(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose as many devices as a launcher has started processes per machine.

    Without a launcher, choose all GPUs, or one device of another type.
    """
    if facts.launched is not None:
        return facts.launched[0], "the launcher started this many processes per machine"
    if device == "cuda":
        return facts.devices, "all GPUs of this machine"
    return 1, "one process uses all cores"


def nodes(facts: DataAndMachine) -> Choice:
    """Choose the number of machines on which a launcher started processes; without a launcher, one machine."""
    return (facts.launched[1], "the launcher uses this many machines") if facts.launched else (1, "this machine")


def strategy(processes: int) -> Choice:
    """Choose a full copy of the model on each device; sharding saves memory but is slower."""
    return ("ddp", "each device has a full copy of the model") if processes > 1 else (None, "")


def precision(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose bfloat16 if the GPU supports it natively, else float32; float16 overflowed in some runs on few images."""
    if device == "cuda" and facts.bf16:
        return "bf16-mixed", "the GPU supports bfloat16"
    return "32-true", "float32 works on every device"


def workers(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose no loader processes for training on the CPU; else the number of CPU cores minus 1, and at most 8."""
    if device == "cpu":
        return 0, "the CPU is busy with training: loader processes would slow it down"
    return min(8, facts.cores - 1), f"{facts.cores} CPU cores"


PROCESS_RULES = (device, devices, nodes, strategy)
COMPUTE_RULES = (precision, workers)
