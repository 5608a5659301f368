"""Values for the flags that may well be right, so that calls come further than the first check."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz.flags import Flag
from fuzz.values import FREE
from paucal.methods.names import EXTRA_LOSSES, PRETRAINING_METHODS, TRAINING_METHODS

# Right for one flag; a flag that is not here gets any of the words above.
FITTING: dict[str, list[str]] = {
    "--model": [
        "vit_mini",
        "resnet10t",
        "swin_mini",
        "convnext_atto",
        "lvvit_t",
        "dhvt_tiny_cifar_patch4",
        "nest_tiny",
    ],
    "--model-args": ["depth=1", "depth=2", "num_heads=2", "embed_dim=32", "qkv_bias=False"],
    "--recipe": ["small-images", "drloc-scratch", "dhvt", "esvit-small-batch", "lvvit-standard", "drloc-finetune"],
    "--method": [*TRAINING_METHODS, *PRETRAINING_METHODS],
    "--add": list(EXTRA_LOSSES),
    "--init": [
        "../material/run",
        "../material/pre",
        "../material/weights/plain.pth",
        "../material/weights/several.pth",
    ],
    "--init-network": ["teacher", "student"],
    "--network": ["teacher", "student"],
    "--guide": ["../material/run"],
    "--labels": ["../material/maps"],
    "--teacher": ["../material/run", "../material/pre"],
    "--compare": ["../material/run", "../material/pre", "../material/weights/plain.pth"],
    "--classes": ["../material/names.txt"],
    "--monitor": ["../material/photos", "../material/nested", "digits"],
    "--rand-augment": ["none", "rand-m9-n2", "rand-m5-mstd0.5-inc1"],
    "--features": ["auto", "pooled", "blocks:1", "blocks:2", "stages:1", "class+mean"],
    "--real-labels": ["../material/real.json"],
    "--time-limit": ["1s", "5m"],
    "--device": ["cpu"],
    "--data": ["../material/nested", "../material/list.txt", "../material/parquet"],
    "--img-size": ["8", "16", "17", "24", "32"],
    "--local-size": ["8", "12", "16"],
    "--devices": ["1"],
    "--nodes": ["1"],
    "--workers": ["0", "1"],
}


def fitting_words_of(flag: Flag) -> SearchStrategy[list[str]]:
    """Return the words that give a flag a value that may well be right, so that calls come further."""
    free = {int: st.integers(0, 20).map(str), float: st.floats(0, 1.5).map(lambda x: f"{x:.3g}")}
    own = [st.sampled_from(FITTING[flag.name])] if flag.name in FITTING else []
    own = own or [free.get(kind, FREE[str]) for kind in flag.kinds if kind is not bool]
    if flag.words:
        own.append(st.sampled_from(flag.words))
    if not own:
        return st.just([flag.name])
    some = st.lists(st.one_of(own), min_size=1, max_size=2 if flag.several else 1)
    return some.map(lambda words: [flag.name, *words])
