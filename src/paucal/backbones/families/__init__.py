"""The papers' backbones that timm lacks, registered with timm: one family per module."""

from paucal.backbones.families.cvt import cvt as cvt
from paucal.backbones.families.cvt import cvt_drloc as cvt_drloc
from paucal.backbones.families.cvt import cvt_esvit as cvt_esvit
from paucal.backbones.families.dhvt import dhvt as dhvt
from paucal.backbones.families.lvvit import lvvit as lvvit
from paucal.backbones.families.resnet import resnet_cifar as resnet_cifar
from paucal.backbones.families.swin import swin_esvit as swin_esvit
from paucal.backbones.families.swin import swin_padded as swin_padded
from paucal.backbones.families.t2t import t2t_vit as t2t_vit
from paucal.backbones.families.vil import vil as vil
from paucal.backbones.families.vil import vil_esvit as vil_esvit
from paucal.backbones.families.vit import flavours as flavours
from paucal.backbones.families.vit import vit_cifar as vit_cifar
