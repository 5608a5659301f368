"""The settings that are chosen automatically if they are not given.

They are listed here, apart from the rules (`rules/`, `methods/`), so that help can name them at once: the rules load
models, which takes seconds. A test keeps both in agreement.
"""

# The fields of each verb's settings.
TRAIN = """
average batch_size crop crop_scale cutmix device devices drloc_hidden drloc_pairs drloc_weight drop_path
epochs erase hflip img_size lr min_lr mixup model model_args nodes normalise precision rand_augment
schedule_epochs soup strategy time warmup_epochs workers
"""
PRETRAIN = """
batch_size blur bottleneck_dim clip device devices drop_path epochs global_scale head_norm hflip hidden_dim
img_size local_crops local_scale local_size lr min_lr model model_args momentum nodes normalise out_dim
pipeline precision projection_hidden strategy tasks teacher_temperature warmup_epochs warmup_teacher_epochs
weight_decay workers
"""
DETECT = """
anchor average backbone_rate batch_size device devices epochs finest freeze_stages head_dim hflip img_size jitter lr
masks min_lr model model_args nodes norms normalise precision proposals pyramid_channels regions strategy time
warmup_epochs workers
"""
SEGMENT = """
backbone_lr batch_size colour crops device devices drop_path epochs freeze hflip img_size lr min_lr model model_args
nodes normalise precision scale strategy time warmup_epochs width workers
"""
CHOSEN = {"train": frozenset(TRAIN.split()), "pretrain": frozenset(PRETRAIN.split())}
CHOSEN["detect"] = frozenset(DETECT.split())
CHOSEN["segment"] = frozenset(SEGMENT.split())
CHOSEN["eval"] = CHOSEN["predict"] = frozenset(["batch_size"])  # by the size of the images and the device
