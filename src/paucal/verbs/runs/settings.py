"""The settings of `paucal runs`."""

from dataclasses import dataclass

from paucal.settings.options import option

_GROUP = "listing"


@dataclass(frozen=True)
class RunsSettings:
    """Which runs are listed, and in which order."""

    sort: str | None = option(
        "sort by any heading, setting or summary entry; a '-' before it puts the largest first", group=_GROUP
    )
    where: list[str] | None = option(
        "only runs that meet all conditions: 'method=drloc' 'model=vit*' 'test>0.9' 'seed!=0'", group=_GROUP
    )
    columns: list[str] | None = option("further settings or entries of summaries to show", group=_GROUP)
    deletable: bool = option("only runs that can be deleted", False, group=_GROUP)
    output: str | None = option("write the table to this file too: .csv, or .json", group=_GROUP)

    @property
    def added_columns(self) -> list[str]:
        """The names of the further columns, as settings and summaries have them."""
        return [name.replace("-", "_") for name in self.columns or ()]
