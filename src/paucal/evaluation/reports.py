"""The two kinds of reports on a classifier, as they are stored."""

from collections.abc import Mapping
from typing import Any

from paucal.evaluation.multi_label_results import KIND, MultiLabelReport
from paucal.evaluation.results import ClassificationReport

Report = ClassificationReport | MultiLabelReport


def read_report(data: Mapping[str, Any]) -> Report:
    """Rebuild a report from what `to_dict` gave.

    Raises:
        UserError: the value is something else.
    """
    several = isinstance(data, Mapping) and data.get("kind") == KIND
    return MultiLabelReport.from_dict(data) if several else ClassificationReport.from_dict(data)
