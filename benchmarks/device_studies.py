"""The papers' tables whose numbers are times on a device."""

from collections.abc import Callable, Mapping
from functools import partial

import paucal
from device_state import Piece, Row, Session

TOY_ROWS = ["DeiT-S/16", "Swin-T W7"]


def throughput(session: Session) -> Mapping[str, Callable[[], Row]]:
    """EsViT's table 7: images per second of its models, and the same on the paper's scale."""
    return {"esvit-table-7": partial(_timed, session, "esvit-table-7")}


def _timed(session: Session, name: str) -> Row:
    rows = TOY_ROWS if session.toy else None
    output = session.work / f"study-{name}{'-toy' if session.toy else ''}"
    found = paucal.study(name, rows=rows, device=session.device, output=str(output))
    measured = [(line, line.measured) for line in found.lines if line.measured is not None]
    return {
        "settings": {"study": name, "rows": rows or "all"},
        "lines": [
            {
                **{"row": line.row.name, "column": line.column.name, "published": line.published},
                **{"median": one.value, "lower_quartile": one.low, "upper_quartile": one.high},
            }
            for line, one in measured
        ],
    }


PIECES = (Piece("throughput", "images per second of the models of EsViT's table 7", 3, throughput),)
