"""How the tests over all methods try each of them. A newly registered method is tried as it is, on every family."""

from dataclasses import replace
from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from stablenet.algorithms import ALGORITHMS
from stablenet.engine.config import MethodConfig
from tests.engine.tiny import tiny_config

# Method -> settings that keep the tests small; without an entry a method has its defaults.
SETTINGS = {
    "d-sam": {"growth": 1},
    "eiil": {"steps": 50},
    "epi-fcr": {"warmup": 2},
    "metareg": {"meta_share": 0.5},  # of two epochs one
    "dfr": {"repeats": 2},
    "jtt": {"upsampling": 5.0},
    "m-ada": {"interval": 2, "autoencoder_epochs": 1, "ascent_steps": 2},  # one is due where a run is stopped
}
WHOLE_SET = {"act": "always", "solve": "dataset", "ramp": 0.0}
# Further ways to use a method: name -> (method, settings).
VARIANTS = {
    "group-dro-groups": ("group-dro", {"groups": "class-domain"}),
    "known-contexts-sampling": ("known-contexts", {"aim": "groups", "by": "sampling"}),
    "stablenet-paper": ("stablenet", {"preset": "paper"}),
    "stablenet-published": ("stablenet", {"preset": "published"}),
    "stablenet-batch": ("stablenet", {"solve": "batch"}),
    "stablenet-dataset": ("stablenet", {**WHOLE_SET, "every": 1}),
    "stablenet-dataset-first-epoch": ("stablenet", {**WHOLE_SET, "collect": "epoch"}),
    "stablenet-dataset-epoch": ("stablenet", {**WHOLE_SET, "collect": "epoch", "every": 1}),
}
# (Method, family) -> how a method refuses a family of backbones it does not support, as a pattern.
UNSUPPORTED = {
    ("d-sam", "paper-cnn"): "the residual blocks of a ResNet, and PaperCNN has none",
    ("d-sam", "vit"): "the residual blocks of a ResNet, and VisionTransformer has none",
    ("far", "vit"): "stage1 of this backbone has no BatchNorm2d",
    ("rsc", "vit"): "no known last convolutional maps",
}
# Method -> what its tiny run has otherwise, as `--set` takes it: balanced domains, another network.
RUN_SETTINGS = {
    "d-sam": (f"model.name={__name__}:make_resnet",),
}

# Methods that know a network by its logits and last features alone: by default they are tried on one family.
PLAIN = {
    *("afr", "dfr", "eiil", "group-dro-groups", "jtt", "known-contexts", "known-contexts-sampling", "lc", "lff"),
    *("spare", "ula"),
}
METHODS = {**{name: (name, SETTINGS.get(name, {})) for name in ALGORITHMS}, **VARIANTS}
SHORT_BATCH = (
    "data.parameters.validation=0.24",  # leaves 57 for training: seven batches of 8 and one of 1
    "train.drop_last=false",
    "train.epochs=2",
    "train.log_every=1",
)


def method_config(case, *settings):
    """A tiny run of a method, in which a last batch holds a single sample unless domains are balanced."""
    method, parameters = METHODS[case]
    config = tiny_config(method, *SHORT_BATCH, *RUN_SETTINGS.get(method, ()), *settings)
    return replace(config, method=MethodConfig(name=method, parameters=parameters))


def make_resnet(image_size):
    """Two stages of one block, without BatchNorm: it could not take a single image as small as these."""
    network = ResNet(BasicBlock, [1, 1, 1, 1], norm_layer=partial(nn.GroupNorm, 1))
    network.layer3, network.layer4, network.fc = nn.Sequential(), nn.Sequential(), nn.Linear(128, 1)
    return network
