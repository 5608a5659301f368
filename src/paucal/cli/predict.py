"""`paucal predict`: probabilities for images, folders and patterns."""

import sys
from collections.abc import Sequence
from typing import Literal

from paucal.cli.arguments import add_settings, new_parser, parse, settings_among
from paucal.verbs.prediction.settings import PredictSettings

DESCRIPTION = """Classify images with the model of a run.
PATHS are image files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = new_parser("predict", DESCRIPTION)
    parser.add_argument("run", type=str, help="run folder")
    parser.add_argument("paths", nargs="+", type=str, help="images, folders or patterns")
    parser.add_argument("--format", type=Literal["csv", "json"], default="csv", help="form of the answer")
    parser.add_argument("--output", "--out", type=str | None, help="file to write; by default standard output")
    add_settings(parser, PredictSettings)
    values, _ = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.export.reading import load_model
    from paucal.runs import write_text
    from paucal.settings.options import check_ranges
    from paucal.verbs.prediction.answers import as_csv, as_json
    from paucal.verbs.prediction.launch import classify_all
    from paucal.verbs.run.console import PlainConsole
    from paucal.verbs.run.outputs import check_table
    from paucal.verbs.run.voice import Voice
    from paucal.wording import showable

    settings = settings_among(values, PredictSettings)
    check_ranges(settings)
    output = None if values.output is None else check_table(values.output)
    model = load_model(values.run, settings.device)
    rows = classify_all(model, values.paths, settings, Voice(PlainConsole(stderr=True)))
    text = as_json(rows) if values.format == "json" else as_csv(rows, model.classes)
    if output is None:
        # A terminal would obey control characters in names; who reads a pipe wants the names as they are.
        sys.stdout.write(showable(text) if sys.stdout.isatty() else text)
    else:
        write_text(output, text)
    return 0
