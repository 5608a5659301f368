"""The flags of LeJEPA."""

from dataclasses import dataclass

from paucal.settings.options import option


@dataclass(frozen=True)
class ContinuedSettings:
    """Frozen layers in pre-training that continues from pretrained weights."""

    freeze: int = option(
        "number of first stages that are frozen, together with the stem and all running statistics; 0 for none",
        group="fine-tuning",
        low=0,
        high=64,
    )


@dataclass(frozen=True)
class ProjectorSettings(ContinuedSettings):
    """The projector of methods that compare embeddings."""

    projection_hidden: int = option("width of the projector's hidden layers", group="method", low=1, high=1 << 16)


@dataclass(frozen=True)
class LeJepaSettings(ProjectorSettings):
    """Options of LeJEPA (Balestriero and LeCun 2025)."""

    help_group = "method"
    sigreg_weight: float = option(
        "weight of the term that keeps embeddings normally distributed, as a fraction of the loss", 0.05, low=0, high=1
    )
    sigreg_directions: int = option("random directions along which the features are tested", 256, low=1, high=1 << 16)
    projection_dim: int = option("width of the embeddings that are compared", 16, low=1, high=1 << 16)
