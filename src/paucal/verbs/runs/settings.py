"""The settings of `paucal runs`."""

from dataclasses import dataclass

from paucal.settings.options import option


@dataclass(frozen=True)
class RunsSettings:
    """Every setting of `paucal runs`: which runs to list, their order, and the columns."""

    help_group = "listing"
    sort: str | None = option(
        "heading, setting or summary entry to sort by; a '-' before the name for descending order"
    )
    where: list[str] | None = option(
        "list only runs that meet all conditions, such as 'method=drloc' 'model=vit*' 'test>0.9'"
    )
    columns: list[str] | None = option("further settings or summary entries to show as columns")
    deletable: bool = option("list only runs that can be deleted", False)
    output: str | None = option(".csv or .json file for the table, which is also printed")

    @property
    def added_columns(self) -> list[str]:
        """Names of the further columns, with underscores instead of hyphens, as in settings and summaries."""
        return [name.replace("-", "_") for name in self.columns or ()]
