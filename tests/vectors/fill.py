"""Deterministic fill of state dicts and inputs (numpy only).

Both rules turn (entry name, shape) into float32 values without any random
number generator; see README.md for the formulas.
"""

import zlib

import numpy as np

FIXED = ("num_batches_tracked", "relative_position_index", "attn_mask")
GAIN = ("weight_g", "alpha", ".g")
M1, M2, STEP = (np.uint64(k) for k in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15))


def sine(n, key):
    """u_i = sin(12.9898 i + (crc32(key) mod 10007)), float64."""
    return np.sin(np.arange(n, dtype=np.float64) * 12.9898 + zlib.crc32(key.encode()) % 10007)


def mix(n, key):
    """u_i in [-1, 1): 64-bit integer mixing of i and crc32(key), float64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * STEP
        z += np.uint64(zlib.crc32(key.encode())) << np.uint64(32)
        z ^= z >> np.uint64(30)
        z *= M1
        z ^= z >> np.uint64(27)
        z *= M2
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


RULES = {"sine": sine, "mix": mix}


def is_fixed(name, is_float):
    """True for entries that keep the value their constructor gives them."""
    return not is_float or name.split(".")[-1] in FIXED


def fill(name, shape, rule="mix"):
    """float32 values of the state-dict entry `name` of that shape."""
    shape = tuple(int(k) for k in shape)
    n = int(np.prod(shape, dtype=np.int64))
    u = RULES[rule](n, name)
    if name.endswith("running_var"):
        v = 1 + 0.5 * u * u
    elif name.endswith("running_mean"):
        v = 0.1 * u
    elif name.endswith(GAIN) or (len(shape) <= 1 and name.endswith("weight")):
        v = 1 + 0.1 * u
    elif len(shape) <= 1:
        v = 0.1 * u
    elif shape[0] == 1 and rule == "mix":
        v = 0.5 * u
    elif len(shape) == 4 and rule == "mix":
        v = u * np.sqrt(3.0 * shape[0] / n)
    else:
        v = u / np.sqrt(n / shape[0])
    return v.astype(np.float32).reshape(shape)


def image(h, w, n=2, rule="mix"):
    """float32 input batch (n, 3, h, w)."""
    k = n * 3 * h * w
    if rule == "sine":
        x = np.sin(np.arange(k, dtype=np.float64) * 0.1234567)
        return x.astype(np.float32).reshape(n, 3, h, w)
    a, b = -(-h // 8), -(-w // 8)
    coarse = mix(n * 3 * a * b, "coarse").reshape(n, 3, a, b)
    coarse = coarse.repeat(8, 2).repeat(8, 3)[:, :, :h, :w]
    fine = mix(k, "fine").reshape(n, 3, h, w)
    return (1.5 * coarse + 0.5 * fine).astype(np.float32)


def tensor(key, shape, scale=1.0, rule="mix"):
    """float32 array scale * u of that shape; `key` seeds u."""
    u = RULES[rule](int(np.prod(shape)), key)
    return (scale * u).astype(np.float32).reshape(shape)


def integers(key, shape, high, rule="mix"):
    """int64 array floor((u + 1) / 2 * high), clipped to [0, high - 1]."""
    u = RULES[rule](int(np.prod(shape)), key)
    v = np.floor((u + 1) / 2 * high).astype(np.int64)
    return np.clip(v, 0, high - 1).reshape(shape)
