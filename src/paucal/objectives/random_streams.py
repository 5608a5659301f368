"""Seeds for random generators that depend only on the run's seed and the step, not on numbers drawn before."""


def derive_seed(seed: int, micro_step: int) -> int:
    """Return the seed of a torch generator for one forward pass of a run, from 0 to 2**63 - 1.

    Consecutive seeds and forward passes give unrelated random numbers (SplitMix64; Steele et al., OOPSLA 2014).

    Example:
        >>> derive_seed(0, 0) == derive_seed(2**32, 0), derive_seed(2**62, 9) < 2**63
        (False, True)
    """
    mask = 2**64 - 1
    state = 0
    for value in (seed, micro_step):
        state = (state + value + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1
