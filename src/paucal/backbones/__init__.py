"""Backbones: timm's models and paucal's, with one interface for their features and fitted to the image size.

Importing this package registers paucal's models with timm.
"""

from paucal.backbones import families as families
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.sizing import Sizing, fit_to_image_size
from paucal.backbones.spec import BackboneSpec

__all__ = ["BackboneSpec", "FeatureBackbone", "Sizing", "fit_to_image_size"]
