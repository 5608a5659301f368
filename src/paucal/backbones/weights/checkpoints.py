"""Find a model's weights in published checkpoints, and the program (a paper's code) that wrote them.

A file does not say where it comes from, but the names of its tensors do. The program determines which tensors belong to
its training method and not to the backbone, and which of our models the weights fit; and for a known program a tensor
of another shape is a mistake, not a choice.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import timm
from torch import Tensor

MAX_MAPPINGS, MAX_PREFIXES = 6, 3
# In a file with several networks the averaged one is better (DINO, EsViT, moving averages), so it comes first.
PREFERRED = ("ema", "average", "averaged", "teacher", "momentum")
LAST = ("student", "online", "optimizer")
# Prefixes that wrappers add to the names of tensors. Names are matched with and without them.
WRAPPERS = ("module.", "_orig_mod.", "module.backbone.", "backbone.", "model.")


@dataclass(frozen=True)
class Candidate:
    """A set of tensors that may be the weights.

    Attributes:
        part: Place of the weights inside the file, as text; empty where they are the whole file.
        state: Tensors by name, without the prefix.
    """

    part: str
    state: dict[str, Tensor]


def candidates(tree: Mapping[str, Any], names: Collection[str]) -> list[Candidate]:
    """Return the parts of a checkpoint that may be a model's weights, the preferred ones first.

    Nested mappings are searched ("state_dict", "model", "teacher", ...), and prefixes are found by comparing the ends
    of the names with the model's own ("module.", "backbone.", ...), without a complete list of wrappers.

    Example:
        >>> import torch
        >>> parts = candidates({"teacher": {"module.fc.bias": torch.zeros(2)}}, {"fc.bias"})
        >>> parts[0].part, list(parts[0].state)
        ("teacher, 'module.'", ['fc.bias'])
    """
    mappings = sorted(_mappings(tree), key=lambda mapping: -len(mapping[1]))[:MAX_MAPPINGS]
    parts = []
    for path, tensors in mappings:
        for prefix in _prefixes(tensors, names):
            state = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            parts.append(Candidate(", ".join(filter(None, (".".join(path), prefix and repr(prefix)))), state))
    return sorted(parts, key=lambda part: _preference_rank(part.part))


def _mappings(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    tensors = {name: value for name, value in tree.items() if isinstance(value, Tensor)}
    if tensors:
        yield path, tensors
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _mappings(value, (*path, name))


def _prefixes(tensors: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    votes: Counter[str] = Counter()
    for key in tensors:
        parts = key.split(".", 12)
        for cut in range(1, len(parts)):
            if ".".join(parts[cut:]) in names:
                votes[".".join(parts[:cut]) + "."] += 1
    voted = [prefix for prefix, _ in votes.most_common(MAX_PREFIXES)]
    wrapped = [prefix for prefix in WRAPPERS if sum(key.startswith(prefix) for key in tensors) > len(tensors) / 2]
    return list(dict.fromkeys([*voted, *reversed(wrapped), ""]))


def _preference_rank(part: str) -> int:
    name_words = set(re.split(r"[\W_]+", part.lower()))
    return 0 if name_words & set(PREFERRED) else 2 if name_words & set(LAST) else 1


State = dict[str, Tensor]


@dataclass(frozen=True)
class Program:
    """A paper's code, and how to recognise and read its checkpoints.

    Attributes:
        name: Name of its repository.
        signs: Patterns; each must be found in the name of some tensor.
        models: Patterns of the timm names of the models that its weights may belong to, the likeliest first.
        method: Pattern of the names of its training method's tensors, such as projection or localization heads.
        rename: Mapping of its tensor names to ours, where no conversion for the model's family handles them.
        own_crops: Whether its variants are tested with crops other than 224 of 256 pixels, as stated in the models'
            configurations.
    """

    name: str
    signs: tuple[str, ...]
    models: tuple[str, ...]
    method: str = r"(?!)"
    rename: Callable[[State], State] = dict
    own_crops: bool = False

    def wrote(self, names: Collection[str]) -> bool:
        """Return whether the program wrote a file, by the names of its tensors."""
        return all(any(re.search(sign, name) for name in names) for sign in self.signs)

    def without_method(self, state: Mapping[str, Tensor]) -> tuple[State, list[str]]:
        """Return the tensors of the backbone, and the names of the training method's tensors."""
        removed = [name for name in state if re.search(self.method, name)]
        return {name: value for name, value in state.items() if name not in set(removed)}, removed


_SEQUENTIAL_RESNET = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


def name_resnet(state: Mapping[str, Tensor]) -> State:
    """Return a ResNet's tensors under torchvision's names, which timm shares, from the positions in a sequence.

    VTs-Drloc keeps torchvision's ResNet as a list of its children (`model.4.0.conv1`); other states are unchanged.
    """
    if not any(name.startswith("model.4.0.conv1") for name in state):
        return dict(state)
    return {
        re.sub(r"^model\.(\d)\.", lambda match: f"{_SEQUENTIAL_RESNET.get(match[1], match[0][:-1])}.", name): value
        for name, value in state.items()
    }


_SELF_SUPERVISED_HEADS = r"^(head|head_dense|projection_head)\.(mlp|last_layer)\b"
_DRLOC, _DRLOC_HEAD = "yhlleo/VTs-Drloc", r"^drloc\."
_ESVIT, SWIN = "microsoft/esvit", "microsoft/Swin-Transformer"

# The first program whose signs are all present is chosen.
PROGRAMS: tuple[Program, ...] = (
    Program(_DRLOC, (r"^layers\.\d\.2\.layers\.\d+\.0\.fn\.to_kv",), ("drloc_cvt_13",), _DRLOC_HEAD),
    Program(_DRLOC, (r"^to_patch_embedding\.1\.weight$", r"^transformer\.layers\."), ("drloc_vit_*",), _DRLOC_HEAD),
    Program(_DRLOC, (r"^model\.4\.0\.conv1\.weight$",), ("resnet50", "resnet*"), _DRLOC_HEAD, name_resnet),
    Program(
        _DRLOC,
        (r"^drloc\.\d",),
        ("swin_tiny_patch4_window7_224", "t2t_vit_14", "swin_*_patch4_window*", "t2t_vit_*"),
        _DRLOC_HEAD,
    ),
    Program(_ESVIT, (r"^head_dense\.",), ("esvit_*", "resnet50"), _SELF_SUPERVISED_HEADS),
    Program(_ESVIT, (r"^stage0\.1\.layers\.0\.0\.fn\.qkv\.dw\.",), ("esvit_cvt_*",), _SELF_SUPERVISED_HEADS),
    Program(
        _ESVIT, (r"^layer1\.0\.cls_token$", r"^layer4\.4\.norm\.weight$"), ("esvit_vil_*",), _SELF_SUPERVISED_HEADS
    ),
    Program(
        "facebookresearch/dino or microsoft/esvit",
        (r"^head\.last_layer\.",),
        ("esvit_*", "deit_*_patch16_224", "vit_*_patch16_224", "resnet50"),
        _SELF_SUPERVISED_HEADS,
    ),
    Program(
        "zihangJiang/TokenLabeling",
        (r"^patch_embed\.conv1\.weight$", r"^patch_embed\.bn1\."),
        ("lvvit_*",),
        own_crops=True,
    ),
    Program("ArieSeirack/DHVT", (r"^blocks\.0\.attn\.ht_proj\.",), ("dhvt_*",)),
    Program("yitu-opensource/T2T-ViT", (r"^tokens_to_token\.attention1\.",), ("t2t_vit_*",), own_crops=True),
    Program("microsoft/CvT", (r"^stage2\.cls_token$", r"\.attn\.conv_proj_q\."), ("cvt_*",)),
    Program("microsoft/vision-longformer", (r"^layer1\.0\.proj\.weight$",), ("vil_*",)),
    Program(
        SWIN,
        (r"^layers\.0\.downsample\.reduction\.", r"^layers\.0\.blocks\.0\.attn\.relative_position_bias_table$"),
        ("swin_*_patch4_window*", "esvit_swin_*"),
    ),
)


def recognise(names: Collection[str]) -> Program | None:
    """Return the program that wrote a file, by the names of its tensors; None if no known program matches.

    Example:
        >>> recognise({"tokens_to_token.attention1.kqv.weight"}).name
        'yitu-opensource/T2T-ViT'
        >>> recognise({"conv1.weight", "fc.bias"})
    """
    return next((program for program in PROGRAMS if program.wrote(names)), None)


def models_of(program: Program) -> list[str]:
    """Return the registered models that a program's weights may belong to, the likeliest first."""
    names = timm.list_models()
    return list(dict.fromkeys(name for pattern in program.models for name in fnmatch.filter(names, pattern)))
