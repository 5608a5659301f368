"""Backbones: models of timm and paucal, adapted to the image size, with a common interface to their features.

Importing this package registers paucal's models with timm.
"""

from paucal.backbones import families as families
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.sizing import Sizing, fit_to_image_size
from paucal.backbones.spec import BackboneSpec

__all__ = ["BackboneSpec", "FeatureBackbone", "Sizing", "fit_to_image_size"]
