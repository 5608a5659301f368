"""The stage that a run has reached, and the way from one to the next, whose objective has more parameters.

EsViT (section 4.1, figure 4) may add the region task to a run of the view task: at epoch 200 of 300. The published
program then loses the optimizer's state without a word, since its groups have other sizes. Here moments go by the names
of their parameters, and only those of the new head begin anew.
"""

from typing import Any

import torch
from torch import nn

from paucal.objectives import Objective
from paucal.runs import RunFolder, load_checkpoint, write_atomically
from paucal.training import checkpoint_rows
from paucal.training.groups import parameter_groups

PREFIX = "objective."


def epochs_done(run: RunFolder | None) -> int:
    """Return the epochs that the saved state of a run has seen; 0 for a new one."""
    return len(checkpoint_rows(run.last)) if run else 0


def lacks_parameters(run: RunFolder, objective: nn.Module) -> bool:
    """Return whether a run's saved state was made with fewer parameters than an objective has."""
    if not run.last.exists():
        return False
    stored = load_checkpoint(run.last)["state_dict"]
    return any(PREFIX + name not in stored for name in objective.state_dict())


def add_parameters(run: RunFolder, objective: Objective) -> None:
    """Rewrite a run's saved state so that an objective with more of them goes on from it.

    What the state has is kept, the moments of its parameters included; what it lacks is the objective's own.
    """
    state = load_checkpoint(run.last)
    ours = {PREFIX + name: value for name, value in objective.state_dict().items()}
    state["state_dict"] = {name: state["state_dict"].get(name, value) for name, value in ours.items()}
    state["optimizer_states"] = [_renumbered(stored, objective) for stored in state["optimizer_states"]]
    write_atomically(run.last, lambda file: torch.save(state, file))


def _renumbered(stored: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Give an optimizer's stored moments the numbers that their parameters have in an objective's groups."""
    numbers = [number for group in stored["param_groups"] for number in group["params"]]
    names = [name for group in stored["param_groups"] for name in group["names"]]
    moments = {
        name: stored["state"][number] for name, number in zip(names, numbers, strict=True) if number in stored["state"]
    }
    kept = {(group["label"], group["decayed"]): group for group in stored["param_groups"]}
    state, groups = {}, []
    for group in parameter_groups(objective, objective.parameter_group, objective.decays_tables):
        first = sum(len(done["params"]) for done in groups)
        places = list(range(first, first + len(group["names"])))
        state |= {place: moments[name] for place, name in zip(places, group["names"], strict=True) if name in moments}
        like = kept.get((group["label"], group["decayed"]), stored["param_groups"][0])
        groups.append({**like, **{key: group[key] for key in ("names", "label", "decayed")}, "params": places})
    return {**stored, "state": state, "param_groups": groups}
