"""Finds a model's weights in published checkpoints, and recognises the program (a paper's code) that wrote them.

The program is recognised by the names of the tensors. The program determines which tensors belong to the training
method instead of the backbone, and which models the weights may belong to. If the program is known, a tensor with
another shape is an error: the weights belong to another variant.

The program also determines the preprocessing with which weights were evaluated: crop, resize filter, mean and standard
deviation. The papers' code preprocesses test images differently from timm for the same architectures. EsViT, DINO,
DeiT, DrLoc, DHVT, Swin, CvT and Vision Longformer resize the shorter side to 256 pixels and crop 224 pixels, but timm's
configurations have a crop ratio of 0.9 or 0.95. The papers use ImageNet's mean and standard deviation, but timm's ViT
uses 0.5 for both.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import timm
from torch import Tensor

from paucal.backbones.names import timm_config

# At most `MAX_MAPPINGS` mappings of a file are tried, those with the most tensors first, and at most `MAX_PREFIXES`
# prefixes per mapping, the most frequent prefix first.
MAX_MAPPINGS, MAX_PREFIXES = 6, 3
# If a file has several networks, networks whose keys contain a word of `PREFERRED_WORDS` are tried first, and networks
# whose keys contain a word of `LAST_WORDS` last. Averaged networks (DINO, EsViT, moving averages) are more accurate.
PREFERRED_WORDS = ("ema", "average", "averaged", "teacher", "momentum")
LAST_WORDS = ("student", "online", "optimizer")
# Prefixes that wrappers add to the names of tensors. Names are matched with and without these prefixes.
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "module.backbone.", "backbone.", "model.")
State = dict[str, Tensor]  # tensors by name
Channels = tuple[float, ...]
Filter = Literal["bicubic", "bilinear", "lanczos"]


@dataclass(frozen=True)
class Candidate:
    """A set of tensors in a checkpoint that may be a model's weights."""

    part: str  # keys and prefix of these tensors in the checkpoint; empty if they are the whole checkpoint
    state: dict[str, Tensor]  # tensors by name, without the prefix


def find_candidates(tree: Mapping[str, Any], names: Collection[str]) -> list[Candidate]:
    """Return the sets of tensors in a checkpoint that may be a model's weights, in order of preference.

    Nested mappings ("state_dict", "model", "teacher", ...) are searched. Prefixes of names ("module.", "backbone.",
    ...) are found by comparing the ends of the names with the model's names, so that no complete list is needed.

    Example:
        >>> import torch
        >>> first, *_ = find_candidates({"teacher": {"module.fc.bias": torch.zeros(2)}}, {"fc.bias"})
        >>> first.part, list(first.state)
        ("teacher, 'module.'", ['fc.bias'])
    """
    ranked_candidates = []
    for path, tensors in sorted(_mappings(tree), key=lambda mapping: -len(mapping[1]))[:MAX_MAPPINGS]:
        for prefix in _prefixes(tensors, names):
            state = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            part = ", ".join(filter(None, (".".join(path), prefix and repr(prefix))))
            words = set(re.split(r"[\W_]+", part.lower()))
            rank = 0 if words & set(PREFERRED_WORDS) else 2 if words & set(LAST_WORDS) else 1
            ranked_candidates.append((rank, Candidate(part, state)))
    return [candidate for _, candidate in sorted(ranked_candidates, key=lambda pair: pair[0])]


def _mappings(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Yield the keys that lead to each mapping with tensors, and these tensors by name."""
    tensors = {name: value for name, value in tree.items() if isinstance(value, Tensor)}
    if tensors:
        yield path, tensors
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _mappings(value, (*path, name))


def _prefixes(tensors: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    """Return prefixes that may have been added to the model's names in a file; the last is "" (no prefix)."""
    counts: Counter[str] = Counter()
    for key in tensors:
        words = key.split(".", 12)
        for start in range(1, len(words)):
            if ".".join(words[start:]) in names:
                counts[".".join(words[:start]) + "."] += 1
    frequent = [prefix for prefix, _ in counts.most_common(MAX_PREFIXES)]
    wrappers = [
        prefix for prefix in WRAPPER_PREFIXES if sum(key.startswith(prefix) for key in tensors) > len(tensors) / 2
    ]
    return list(dict.fromkeys([*frequent, *reversed(wrappers), ""]))


@dataclass(frozen=True)
class Program:
    """A paper's code, and how to recognise and read its checkpoints."""

    name: str  # name of the repository
    name_patterns: tuple[str, ...]  # regular expressions; each matches the name of a tensor
    model_patterns: tuple[str, ...]  # shell patterns of the models to which weights may belong, the most likely first
    method_pattern: str = r"(?!)"  # matches names of the method's tensors, such as projection heads; by default no name
    # Renames tensors to the model's names; not needed if timm's conversion renames them.
    rename: Callable[[State], State] = dict
    # Whether models are evaluated with the crop ratios of their timm configurations; False if images are resized to 256
    # pixels and cropped to 224 pixels.
    uses_timm_crop_ratios: bool = False


# timm's names of the modules of a ResNet, by their indices in VTs-Drloc's list.
_RESNET_NAMES_BY_INDEX = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


def rename_resnet(state: Mapping[str, Tensor]) -> State:
    """Rename the tensors of VTs-Drloc's ResNet to timm's names, which torchvision uses too.

    VTs-Drloc stores torchvision's ResNet as a list of its children (`model.4.0.conv1`). Other state dicts are returned
    unchanged.
    """
    if not any(name.startswith("model.4.0.conv1") for name in state):
        return dict(state)
    return {
        re.sub(r"^model\.(\d)\.", lambda match: f"{_RESNET_NAMES_BY_INDEX.get(match[1], match[0][:-1])}.", name): value
        for name, value in state.items()
    }


# Pattern of the names of the tensors in the projection heads of DINO and EsViT.
_SELF_SUPERVISED_HEADS = r"^(head|head_dense|projection_head)\.(mlp|last_layer)\b"
# Names of repositories, and a pattern of the names of the tensors in DrLoc's localization head.
_DRLOC, _DRLOC_HEAD = "yhlleo/VTs-Drloc", r"^drloc\."
_ESVIT, SWIN = "microsoft/esvit", "microsoft/Swin-Transformer"

# A file is attributed to the first program whose `name_patterns` all match.
PROGRAMS: tuple[Program, ...] = (
    Program(_DRLOC, (r"^layers\.\d\.2\.layers\.\d+\.0\.fn\.to_kv",), ("drloc_cvt_13",), _DRLOC_HEAD),
    Program(_DRLOC, (r"^to_patch_embedding\.1\.weight$", r"^transformer\.layers\."), ("drloc_vit_*",), _DRLOC_HEAD),
    Program(_DRLOC, (r"^model\.4\.0\.conv1\.weight$",), ("resnet50", "resnet*"), _DRLOC_HEAD, rename_resnet),
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
        uses_timm_crop_ratios=True,
    ),
    Program("ArieSeirack/DHVT", (r"^blocks\.0\.attn\.ht_proj\.",), ("dhvt_*",)),
    Program(
        "yitu-opensource/T2T-ViT", (r"^tokens_to_token\.attention1\.",), ("t2t_vit_*",), uses_timm_crop_ratios=True
    ),
    Program("microsoft/CvT", (r"^stage2\.cls_token$", r"\.attn\.conv_proj_q\."), ("cvt_*",)),
    Program("microsoft/vision-longformer", (r"^layer1\.0\.proj\.weight$",), ("vil_*",)),
    Program(
        SWIN,
        (r"^layers\.0\.downsample\.reduction\.", r"^layers\.0\.blocks\.0\.attn\.relative_position_bias_table$"),
        ("swin_*_patch4_window*", "esvit_swin_*"),
    ),
)


def recognise_program(names: Collection[str]) -> Program | None:
    """Return the program that wrote a file with tensors of these names; None if the program is unknown."""

    def has_match(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in names)

    return next((program for program in PROGRAMS if all(map(has_match, program.name_patterns))), None)


def possible_models(program: Program) -> list[str]:
    """Return the names of the timm models to which a program's weights may belong, the most likely first."""
    names = timm.list_models()
    return list(dict.fromkeys(name for pattern in program.model_patterns for name in fnmatch.filter(names, pattern)))


@dataclass(frozen=True)
class WeightsPreprocessing:
    """The preprocessing with which weights were evaluated; by default that of DeiT's code and its derivatives."""

    crop_ratio: float = 224 / 256  # side of the centre crop, divided by the side to which images are resized first
    interpolation: Filter = "bicubic"
    mean: Channels = (0.485, 0.456, 0.406)  # mean of each channel, subtracted from pixel values in [0, 1]
    # Standard deviation of each channel, by which the centred pixel values are divided.
    std: Channels = (0.229, 0.224, 0.225)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "WeightsPreprocessing":
        """Return the object from the output of `dataclasses.asdict`, for example from JSON; values are not checked."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def timm_preprocessing(model: str) -> WeightsPreprocessing:
    """Return the preprocessing in timm's configuration of a model; the defaults if the model has no configuration."""
    config = timm_config(model)
    if config is None:
        return WeightsPreprocessing()
    ratio = float(config.crop_pct or WeightsPreprocessing.crop_ratio)
    interpolation: Any = config.interpolation if config.interpolation in get_args(Filter) else "bicubic"
    return WeightsPreprocessing(ratio, interpolation, tuple(config.mean), tuple(config.std))  # type: ignore[arg-type]


def checkpoint_preprocessing(program: str, model: str) -> WeightsPreprocessing:
    """Return the preprocessing with which the weights of a file were evaluated by the program that wrote the file.

    `program` is the name of the `Program`; "" if unknown.
    """
    if program == SWIN and model.endswith("_384"):
        return WeightsPreprocessing(crop_ratio=1.0)  # Swin's code resizes images to 384 pixels without a crop
    writer = next((entry for entry in PROGRAMS if entry.name == program), None)
    if model.startswith("deit_") if writer is None else not writer.uses_timm_crop_ratios:
        return WeightsPreprocessing()
    return timm_preprocessing(model)


def find_program(tree: Mapping[str, Any]) -> str:
    """Return the name of the program that wrote a file, recognised by the names of its tensors; "" if unknown."""
    programs = (recognise_program(candidate.state) for candidate in find_candidates(tree, ()))
    return next((program.name for program in programs if program is not None), "")


def from_scratch_preprocessing(model: str) -> WeightsPreprocessing:
    """Return the preprocessing of the original code of a model's family, for evaluating models trained from scratch.

    timm's configurations are not used, since they belong to the weights that timm publishes.
    """
    patterns = [pattern for program in PROGRAMS if program.uses_timm_crop_ratios for pattern in program.model_patterns]
    if not any(fnmatch.fnmatch(model, pattern) for pattern in patterns):
        return WeightsPreprocessing()
    return replace(WeightsPreprocessing(), crop_ratio=timm_preprocessing(model).crop_ratio)
