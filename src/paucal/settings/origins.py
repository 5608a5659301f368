"""The origin of each setting: a flag, a config file, a default, or an automatic choice with its reason."""

from collections.abc import Mapping


def list_origins(settings: object, origins: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of each setting: "auto: REASON", the entry in `origins` ("flag" or "config"), or "default"."""
    return {
        name: automatic_origin(reasons[name]) if name in reasons else origins.get(name, "default")
        for name in vars(settings)
    }


def automatic_origin(reason: str) -> str:
    """Return the origin of a setting that the run chose for a reason."""
    return f"auto: {reason}"


def is_automatic(origin: str) -> bool:
    """Return whether the run chose the setting that has this origin."""
    return origin.startswith("auto: ")
