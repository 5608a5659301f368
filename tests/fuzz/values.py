"""Values for the flags: what each type allows at its edges, what it does not, and what nobody would think of."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz.flags import Flag

LONG = 5000
INTEGERS = [
    *("0", "1", "2", "3", "7", "8", "16", "33", "64", "255", "-1", "-2", "-0", "+1", "1_000", "0x10", "1e3", "1.0"),
    *(str(2**power + step) for power in (8, 16, 31, 32, 53, 62, 63, 64) for step in (-1, 0, 1)),
    *(str(-(2**power)) for power in (31, 63, 64)),
    *("1" + "0" * 30, "9" * LONG, "٣", "²", " 1", "1 2", "1,2", "--1"),
]
FLOATS = [
    *("0", "0.0", "-0.0", "1", "1.0", "0.5", "0.999999", "1.000001", "2", "-1", "-1e-9", "1e-3", "5e-324", "1e-320"),
    *("1e-45", "1e-38", "1e10", "3.5e38", "1e300", "1.8e308", "1e999", "nan", "-nan", "inf", "-inf", "Infinity", ".5"),
    *("5.", "1e", "1e-", "0x1p3", "1_0.5", "1,5", "50%", "½", "1" + "0" * 400, "0." + "1" * LONG),
]
NOTHING = [
    "",
    " ",
    "\t",
    "\n",
    "-",
    "--",
    "=",
    "~",
    "~nouser",
    "~/x",
    ".",
    "..",
    "/",
    "//",
    "null",
    "None",
    "true",
    "[]",
]
STRANGE = [
    *(
        "[1, 2]",
        "{}",
        "{a: 1}",
        "&a [*a]",
        "!!python/object:os.system x",
        "a: b: c",
        "'",
        '"',
        "\\",
        "%s",
        "{0}",
        "$HOME",
    ),
    *(
        ":smile:",
        ":warning:",
        "[bold red]x[/]",
        "[/]",
        "[link=x]",
        "\x1b[31mred\x1b[0m",
        "\x07",
        "\x7f",
        "\x9b2J",
        "a\rb",
    ),
    *("a\nb", "a\x0bb", "naïve", "東京", "🦜", "e\u0301", "\u202eabc", "\ufeffx", "\u2028", "\udcff\udcfe", "x" * LONG),
    *(
        "é" * LONG,
        "a" * 255,
        "a" * 256,
        "/".join("a" * 9 for _ in range(600)),
        "*",
        "?",
        "[",
        "**/*",
        "a*",
        "; ls",
        "`id`",
    ),
    *("../../../../../../etc/passwd", "-h", "--help", "--version", "http://localhost:1/x", "file:///etc/passwd", "NUL"),
]
# Right for some flag or other, relative to the folder of a call (see `material.py`).
WORDS = [
    *(
        "auto",
        "none",
        "timm",
        "cpu",
        "cuda",
        "cuda:7",
        "mps",
        "meta",
        "xpu",
        "teacher",
        "student",
        "ema",
        "1s",
        "0s",
        "5m",
    ),
    *(
        "supervised",
        "drloc",
        "token-labeling",
        "relabel",
        "locality",
        "distillation",
        "rand-m9-n2",
        "rand-m99-n9",
        "rand-x",
        "augmix-m5",
    ),
    *(
        "rand-m9-n99999999999",
        "3-augment",
        "imagenet100",
        "cifar10",
        "digits",
        "table9",
        "voc2007",
        "blocks:1",
        "blocks:99",
    ),
    *("stages:1", "pooled", "depth=1", "depth=0", "depth=-1", "depth=99999", "depth=x", "num_classes=5", "embed_dim=0"),
    *(
        "img_size=7",
        "in_chans=1",
        "pretrained=True",
        "=",
        "depth=",
        "depth=[[[]]]",
        "no_such=1",
        "vit_mini",
        "resnet10t",
    ),
    *(
        "small-images",
        "drloc-scratch",
        "dhvt",
        "esvit-small-batch",
        "99999999999h",
        "-1s",
        "1e9d",
        "tf_mobilenetv3_small_075",
    ),
]
PATHS = [
    *("out", "new/out", "a/b/c/d", "out.csv", "out.png", "../material", "../material/photos", "../material/nested"),
    *(
        "../material/photos/class0",
        "../material/photos/class0/0.png",
        "../material/run",
        "../material/run/",
        "none.yaml",
    ),
    *("../material/run/config.yaml", "../material/run/model.json", "../material/run/model.safetensors"),
    *("../material/run/checkpoints/last.ckpt", "../material/run/split.csv", "../material/run/metrics.csv"),
    *("../material/pre", "../material/pre/model.safetensors", "../material/maps", "../material/maps/values.npy"),
    *(
        "../material/odd/link",
        "../material/odd/loop",
        "../material/odd/fifo",
        "../material/odd/zero",
        "../material/odd/empty",
    ),
    *("../material/odd/nothing", "../material/odd/nowhere", "../material/odd/garbage", "../material/odd/garbage.pth"),
    *(
        "../material/odd/null",
        "../material/odd/socket",
        "/dev/zero",
        "/dev/null",
        "/dev/stdin",
        "/dev/full",
        "/proc/self/mem",
    ),
    *(
        "../material/photos/*/*.png",
        "../material/**",
        "../material/list.txt",
        "../material/names.txt",
        "../material/real.json",
    ),
]
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")  # no argument of a program can hold a NUL
TEXT = st.text(_CHARACTERS, max_size=40)
ODD = st.sampled_from(NOTHING + STRANGE) | TEXT
FREE: dict[type, SearchStrategy[str]] = {
    int: st.sampled_from(INTEGERS) | st.integers(-10, 300).map(str) | st.integers().map(str),
    float: st.sampled_from(FLOATS) | st.floats().map(repr) | st.floats(0, 1).map(repr),
    str: st.sampled_from(WORDS) | st.sampled_from(PATHS),
}


def value_of(flag: Flag) -> SearchStrategy[str]:
    """Return strange, borderline and some sound values of a flag: mostly of its own type, some of none."""
    own = [FREE.get(kind, TEXT) for kind in flag.kinds if kind is not bool]
    if flag.words:
        own.append(st.sampled_from([*flag.words, *(word.upper() for word in flag.words), flag.words[0] + "x"]))
    return st.one_of(*own, *own, ODD) if own else ODD


def words_of(flag: Flag) -> SearchStrategy[list[str]]:
    """Return the words that give a flag on the command line, in any of the forms that people type."""
    if flag.kinds == (bool,):
        return st.just([flag.name]) | value_of(flag).map(lambda value: [f"{flag.name}={value}"])
    values = st.lists(value_of(flag), max_size=4) if flag.several else st.lists(value_of(flag), min_size=1, max_size=1)
    return st.one_of(
        values.map(lambda some: [flag.name, *some]),
        values.map(lambda some: [flag.name, *some]),
        value_of(flag).map(lambda value: [f"{flag.name}={value}"]),
    )
