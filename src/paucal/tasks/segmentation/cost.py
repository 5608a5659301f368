"""Numbers of parameters and multiply-adds of a segmentation network, counted on the meta device."""

import torch

from paucal.backbones import BackboneSpec
from paucal.backbones.cost import SubmoduleCost, counting_on_meta_device, submodule_cost
from paucal.tasks.segmentation.network import build_segmentation_network


def segmenter_cost(
    spec: BackboneSpec, classes: int, width: int = 512, auxiliary: int | None = 256
) -> dict[str, SubmoduleCost]:
    """Return the costs of UPerNet's "backbone", "head" and "auxiliary" head.

    The multiply-adds are counted for one image of the spec's size. `auxiliary` is the number of channels of the
    auxiliary head, or None for a network without this head. The auxiliary head counts 0 multiply-adds, since only
    training uses this head.
    """
    with counting_on_meta_device():
        network = build_segmentation_network(spec, classes, width).eval()
        images = torch.zeros(1, spec.in_chans, *spec.image_size)
        parts = {
            "backbone": submodule_cost(network.maps, images),
            "head": submodule_cost(network.head, network.maps(images)),
        }
        if auxiliary is not None:
            head = network.make_auxiliary_head(auxiliary)
            parts["auxiliary"] = SubmoduleCost(sum(parameter.numel() for parameter in head.parameters()), 0)
        return parts
