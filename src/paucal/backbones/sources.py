"""Which models are paucal's own, and where their architecture comes from."""

import timm

_OURS = "paucal.backbones."
_PAPERS = {
    "dhvt": "DHVT (Lu et al. 2022)",
    "lvvit": "LV-ViT (Jiang et al. 2021)",
    "t2t_vit": "T2T-ViT (Yuan et al. 2021)",
    "cvt": "CvT (Wu et al. 2021)",
    "cvt_drloc": "CvT in DrLoc (Liu et al. 2021)",
    "cvt_esvit": "CvT in EsViT (Li et al. 2022)",
    "vil": "ViL (Zhang et al. 2021)",
    "vil_esvit": "ViL in EsViT (Li et al. 2022)",
    "swin_esvit": "Swin in EsViT (Li et al. 2022)",
    "swin_padded": "Swin (Liu et al. 2021), padded before it is shifted",
    "flavours": "ViT in the papers' programs",
    "resnet_cifar": "ResNet (He et al. 2016), stem for small images",
    "vit_cifar": "plain ViT, DHVT's baseline",
    "small": "paucal",
}


def is_ours(name: str) -> bool:
    """Tell whether paucal registers the model."""
    return timm.model_entrypoint(name).__module__.startswith(_OURS)


def source_of(name: str) -> str:
    """Return the paper of one of our models, else "timm"."""
    module = timm.model_entrypoint(name).__module__
    return _PAPERS.get(module.rpartition(".")[2], "paucal") if module.startswith(_OURS) else "timm"
