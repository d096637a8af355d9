"""A network by name: one's own modules, mistakes, and weights from a file."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stablenet.errors import UserError
from stablenet.models import build_network, parse_tap
from tests.models.test_network import build


class Own(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.first, self.last = nn.Linear(12, width), nn.Linear(width, 99)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())


def test_own_module_loses_its_classifier():
    network = build_network(f"{__name__}:Own", 2, parameters={"width": 7})
    assert network.width == 7
    assert network(torch.rand(3, 3, 2, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "did you mean"),
        ("nowhere.at.all:Net", "cannot be imported: no module 'nowhere' in"),
        ("torch.nn:Nett", "cannot be imported: module 'torch.nn' has no attribute 'Nett'"),
        (":Net", "'' is not a module name"),
        ("squeezenet1_0", "unknown backbone"),
        ("timm/vit_tini", "unknown timm backbone"),
        ("torch.nn:Flatten", "ends in no nn.Linear"),
        ("builtins:dict", "expected an nn.Module"),
    ],
)
def test_unusable_backbones_are_named(name, message):
    with pytest.raises(UserError, match=message):
        build_network(name, 3)


def test_wrong_parameters_and_taps_are_named():
    with pytest.raises(UserError, match=r"unknown setting 'model.parameters.depth'"):
        build_network("paper-cnn", 3, parameters={"depth": 3})
    with pytest.raises(UserError, match="unknown tap 'stage7'"):
        build_network("paper-cnn", 3, taps=["stage7"])
    with pytest.raises(UserError, match="unknown form of a tap"):
        parse_tap("stage1:max")
    with pytest.raises(UserError, match="no published weights"):
        build_network("paper-cnn", 3, pretrained="imagenet")


def test_a_classifier_may_start_small_and_without_bias():
    """Xavier with gain 0.1: uniform within 0.1·√(6/(16 + 4))."""
    heads = {how: build_network("paper-cnn", 4, head=how).head for how in ("default", "xavier-0.1")}
    assert heads["default"].bias.abs().max() > 0
    assert not heads["xavier-0.1"].bias.any()
    assert 0.04 < heads["xavier-0.1"].weight.abs().max() <= 0.1 * (6 / 20) ** 0.5
    with pytest.raises(UserError, match=r"did you mean 'xavier-0\.1'"):
        build_network("paper-cnn", 4, head="xavier-0.2")


class TestWeightsFromFile:
    def save(self, path, network, header=None, **changes):
        state = {k: v.half() if "conv" in k else v for k, v in network.body.state_dict().items()}
        state = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
        save_file({**state, **changes}, path, metadata=header)

    def test_half_precision_is_widened_and_the_classifier_is_new(self, tmp_path):
        old = build("resnet18")
        self.save(tmp_path / "w.safetensors", old, **{"fc.weight": torch.zeros(1000, 512)})
        network = build_network("resnet18", 5, pretrained="w.safetensors", root=tmp_path)
        assert network.body.conv1.weight.dtype == torch.float32
        torch.testing.assert_close(network.body.conv1.weight, old.body.conv1.weight.half().float())
        assert torch.equal(network.body.layer4[1].bn2.weight, old.body.layer4[1].bn2.weight)

    def test_header_moves_strides_and_sets_eps(self, tmp_path):
        header = {
            "architecture": "resnet50, stride 2 in the 1x1 convolution (conv1) of layer2/3/4 block 0",
            "bn_eps": "1e-3",
        }
        old = build_network("resnet50", 3)
        self.save(tmp_path / "w.safetensors", old, header)
        network = build_network("resnet50", 3, pretrained=str(tmp_path / "w.safetensors"))
        assert network.adaptation == {"bn_eps": 0.001, "stride_in_1x1": True}
        block = network.body.layer3[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
        assert network.body.layer3[1].conv1.stride == (1, 1)
        assert network.body.bn1.eps == 1e-3
        # A network made anew for trained weights is the same one.
        again = build_network("resnet50", 3, adaptation=network.adaptation)
        again.load_state_dict(network.state_dict())
        x = torch.rand(1, 3, 32, 32)
        torch.testing.assert_close(again.eval()(x), network.eval()(x))
        assert not torch.allclose(again(x), old.eval()(x))

    def test_unfitting_weights_are_named(self, tmp_path):
        self.save(tmp_path / "w.safetensors", build("resnet18"), strange=torch.zeros(1))
        with pytest.raises(UserError, match="have the unknown strange"):
            build_network("resnet18", 3, pretrained=str(tmp_path / "w.safetensors"))
        with pytest.raises(UserError, match=r"do not fit the backbone: they lack layer1\.0\.conv3\.weight"):
            build_network("resnet50", 3, pretrained=str(tmp_path / "w.safetensors"))
        with pytest.raises(UserError, match="no weights at"):
            build_network("resnet18", 3, pretrained="nowhere.safetensors", root=tmp_path)


class TestPublishedStateDicts:
    """As torchvision publishes them: a .pth file whose name ends in the beginning of its hash."""

    def save(self, folder, state, name="resnet18-{}.pth"):
        from stablenet.files import hash_file

        torch.save(state, folder / "made")
        path = folder / name.format(hash_file(folder / "made")[:8])
        (folder / "made").rename(path)
        return path

    def test_a_local_file_is_taken(self, tmp_path):
        old = build("resnet18")
        path = self.save(tmp_path, {**old.body.state_dict(), "fc.weight": torch.zeros(1000, 512)})
        network = build_network("resnet18", 5, pretrained=path.name, root=tmp_path)
        torch.testing.assert_close(network.body.layer3[0].conv1.weight, old.body.layer3[0].conv1.weight)

    def test_wrong_contents_are_named_with_their_hash(self, tmp_path):
        path = self.save(tmp_path, build("resnet18").body.state_dict())
        with pytest.raises(UserError, match=r"\(SHA-256 [0-9a-f]{16}…\) do not fit the backbone"):
            build_network("resnet34", 5, pretrained=str(path))
        other = path.rename(tmp_path / "resnet18-00000000.pth")
        with pytest.raises(UserError, match=r"SHA-256 begins with [0-9a-f]{8}, expected 00000000; download"):
            build_network("resnet18", 5, pretrained=str(other))

    def test_what_is_no_state_dict_is_refused_without_running_it(self, tmp_path):
        with pytest.raises(UserError, match=r"holds more than tensors.*expected a state dict") as caught:
            build_network("resnet18", 5, pretrained=str(self.save(tmp_path, build("resnet18"), "whole.pth")))
        (tmp_path / "noise.pth").write_bytes(bytes(range(100)))
        with pytest.raises(UserError, match="it is damaged, or") as damaged:
            build_network("resnet18", 5, pretrained=str(tmp_path / "noise.pth"))
        assert not any("weights_only" in str(each.value) for each in (caught, damaged))  # no advice to run it
        with pytest.raises(UserError, match="hold no state dict"):
            build_network("resnet18", 5, pretrained=str(self.save(tmp_path, [1, 2], "list.pth")))

    def test_without_a_network_it_says_where_from_and_where_to(self, monkeypatch, tmp_path):
        from urllib.error import URLError

        def fail(*arguments, **options):
            raise URLError("no network")

        monkeypatch.setattr("torch.hub.download_url_to_file", fail)
        monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
        with pytest.raises(UserError) as caught:
            build_network("resnet18", 5, pretrained="imagenet")
        told = str(caught.value)
        assert "https://download.pytorch.org/models/resnet18-f37072fd.pth elsewhere" in told
        assert str(tmp_path / "checkpoints" / "resnet18-f37072fd.pth") in told


class TestTimmsWeights:
    @pytest.fixture(autouse=True)
    def no_network(self, monkeypatch):
        timm = pytest.importorskip("timm")
        make = timm.create_model

        def create(name, pretrained=False, **parameters):
            if pretrained:
                raise ConnectionError("no network\nand a traceback")
            return make(name, **parameters)

        monkeypatch.setattr("timm.create_model", create)

    def test_without_a_network_it_says_where_from_and_what_to_set(self):
        with pytest.raises(UserError) as caught:
            build_network("timm/resnet10t", 3, pretrained="imagenet")
        told = str(caught.value)
        assert "(no network): fetch model.safetensors of timm/resnet10t.c3_in1k at the Hugging Face Hub" in told
        assert "set model.pretrained to the file, .safetensors or .pth" in told

    def test_a_local_file_is_taken(self, tmp_path):
        old = build_network("timm/resnet10t", 3)
        save_file({**old.body.state_dict(), "fc.weight": torch.zeros(1000, 512)}, tmp_path / "model.safetensors")
        network = build_network("timm/resnet10t", 5, pretrained="model.safetensors", root=tmp_path)
        torch.testing.assert_close(network.body.layer1[0].conv1.weight, old.body.layer1[0].conv1.weight)

    def test_wrong_parameters_and_networks_without_weights_are_named(self):
        with pytest.raises(UserError, match=r"could not be built with model\.parameters: .*depht"):
            build_network("timm/resnet10t", 3, pretrained="imagenet", parameters={"depht": 3})
        with pytest.raises(UserError, match="timm/vit_giant_patch14_224 has no published weights"):
            build_network("timm/vit_giant_patch14_224", 3, pretrained="imagenet")


@pytest.mark.slow
def test_caffe_resnet50_of_the_data_folder(monkeypatch):
    """Photographs give its last BatchNorm the statistics it was trained with, but only if its header is heeded."""
    import os
    from pathlib import Path

    root = os.environ.get("STABLENET_DATA")
    if root is None or not (Path(root) / "resnet50-imagenet-caffe-fp16.safetensors").exists():
        pytest.skip("STABLENET_DATA has no ResNet-50")
    images = read_photos(Path(root))

    def measure():
        network = build_network("resnet50", 7, pretrained="resnet50-imagenet-caffe-fp16.safetensors", root=Path(root))
        return unlikeness(network.eval(), images)

    adapted = measure()
    monkeypatch.setattr("stablenet.models.build.adapt", lambda network, adaptation: None)
    assert adapted < 0.7 * measure()


def read_photos(root):
    from stablenet.data.augment import Normalization, Resize
    from stablenet.data.decode import decode
    from stablenet.data.sources import read_source

    table = read_source("pacs", root)
    photos = table.rows[table.rows["domain"] == table.domains.index("photo")].groupby("label").head(4)
    pixels = torch.stack([torch.from_numpy(decode(table.open_bytes(path)).copy()) for path in photos["path"]])
    return Resize(224, Normalization())(pixels, torch.zeros(len(pixels), dtype=torch.int64))


def unlikeness(network, images):
    """Squared distance of the last BatchNorm's input means from its running means, in its variances."""
    last, gaps = network.body.layer4[2].bn3, []

    def compare(module, args):
        gap = (args[0].mean((0, 2, 3)) - module.running_mean).square() / module.running_var
        gaps.append(gap.mean().item())

    last.register_forward_pre_hook(compare)
    with torch.no_grad():
        network(images)
    return gaps[0]
