"""Shapes of labelling programs that have no area, and so no box."""

from collections import Counter

from paucal.wording import counted, was


def unread_shapes(counts: Counter[str]) -> list[str]:
    """Return a note on the shapes that were not read, by their kinds; none where there are none."""
    if not counts:
        return []
    kinds = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return [f"{counted(counts.total(), 'shape')} without a box of its own {was(counts.total())} not read: {kinds}"]
