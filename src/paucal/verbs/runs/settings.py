"""The settings of `paucal runs`."""

from dataclasses import dataclass

from paucal.settings.options import option

_GROUP = "listing"


@dataclass(frozen=True)
class RunsSettings:
    """Every setting of `paucal runs`: the runs to list, their order and columns."""

    sort: str | None = option(
        "heading, setting or summary entry to sort by; after a '-' in descending order", group=_GROUP
    )
    where: list[str] | None = option(
        "only runs that meet all conditions: 'method=drloc' 'model=vit*' 'test>0.9' 'seed!=0'", group=_GROUP
    )
    columns: list[str] | None = option("further settings or summary entries to show as columns", group=_GROUP)
    deletable: bool = option("only runs that can be deleted", False, group=_GROUP)
    output: str | None = option("file for the table, in addition to printing it: .csv or .json", group=_GROUP)

    @property
    def added_columns(self) -> list[str]:
        """Names of the further columns, with underscores as in settings and summaries."""
        return [name.replace("-", "_") for name in self.columns or ()]
