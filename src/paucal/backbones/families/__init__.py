"""Backbones of the papers that are not in timm, registered with timm.

Each family has a module.

Docstrings of models and layers leave out arguments that timm's transformers also have, such as `mlp_ratio`.
"""

from paucal.backbones.families import cvt as cvt
from paucal.backbones.families import cvt_drloc as cvt_drloc
from paucal.backbones.families import cvt_esvit as cvt_esvit
from paucal.backbones.families import dhvt as dhvt
from paucal.backbones.families import lvvit as lvvit
from paucal.backbones.families import resnet_cifar as resnet_cifar
from paucal.backbones.families import swin_esvit as swin_esvit
from paucal.backbones.families import t2t_vit as t2t_vit
from paucal.backbones.families import vil as vil
from paucal.backbones.families import vit as vit
