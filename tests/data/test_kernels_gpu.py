"""The Triton programs on a GPU, against the batched operations on the same GPU."""

import pytest
import torch

from stablenet.data.augment import Augment, AugmentSettings, Normalization, Resize
from stablenet.data.kernels import runs_fused
from stablenet.data.loader import BatchSettings, Loader, MemoryPixels, PartSamples
from stablenet.data.transforms import Draws, apply_draws
from stablenet.randomness import combine

pytestmark = pytest.mark.gpu

NORMALIZATION = Normalization()
STRONG = AugmentSettings(scale=(0.1, 1.0), grayscale=0.3)


@pytest.fixture(autouse=True)
def exact_products():
    """The batched operations multiply matrices, which must not be rounded to TF32 here."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def _pixels(count, height, width):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)
    pixels[0, :5], pixels[1], pixels[2] = 77, torch.tensor([255, 0, 0], dtype=torch.uint8), 0
    return pixels.cuda()


@pytest.mark.parametrize(("height", "width", "size"), [(37, 29, 16), (25, 29, 64), (227, 227, 224), (480, 640, 224)])
@pytest.mark.parametrize("picked", [False, True])
def test_augmentation_equals_the_batched_operations(height, width, size, picked):
    pixels, key = _pixels(40, height, width), combine(3, 1, torch.arange(40)).cuda()
    augment = Augment(size, NORMALIZATION, STRONG)
    assert runs_fused(pixels, size)
    draws = augment.draw(key, height, width)
    rows = torch.arange(40, device="cuda").flip(0) if picked else None
    chosen = pixels if rows is None else pixels[rows]
    expected = NORMALIZATION(apply_draws(chosen, Draws.unpack(draws), size))
    found = augment.apply(pixels, draws, rows)
    assert found.is_contiguous(memory_format=torch.channels_last)
    # A position near 227 is known to 2⁻¹⁶, in both directions, and a step between pixels can be 1/0.224 high.
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    for _ in range(3):
        assert torch.equal(augment.apply(pixels, draws, rows), found)


@pytest.mark.parametrize(("height", "width", "size"), [(37, 29, 16), (28, 28, 28), (227, 227, 224), (480, 640, 224)])
def test_resizing_equals_torchvision_within_a_level(height, width, size):
    pixels = _pixels(40, height, width)
    resize = Resize(size, NORMALIZATION)
    assert runs_fused(pixels, size)
    found = resize(pixels, torch.zeros(40))
    differs = (found - resize._resize(pixels)).abs()
    assert differs.max() < 1.01 / 255 / 0.224
    assert (differs > 1e-5).float().mean() < 3e-3  # where a value lies halfway between two levels
    assert torch.equal(resize(pixels, torch.zeros(40)), found)


def test_a_large_source_goes_the_batched_way():
    pixels = _pixels(3, 300, 200)
    assert not runs_fused(pixels, 64)
    assert Augment(64, NORMALIZATION)(pixels, torch.arange(3).cuda()).shape == (3, 3, 64, 64)


@pytest.mark.parametrize("transform", [Augment(28, NORMALIZATION, STRONG), Resize(28, NORMALIZATION)])
def test_loaders_of_all_kinds_give_the_processors_batches(transform):
    pixels = _pixels(40, 30, 30).cpu()
    label = torch.arange(40) % 4
    memory = MemoryPixels([str(k) for k in range(40)], pixels)
    samples = PartSamples(memory, torch.arange(40).flip(0), label, label, torch.arange(40), 40)
    level = 1e-4 if isinstance(transform, Augment) else 1.01 / 255 / 0.224
    for options in ({}, {"rank": 1, "world_size": 2}):
        settings = BatchSettings(batch_size=14, balance_domains=False)
        expected = list(Loader(samples, settings, transform, **options).epoch(1))
        device, stream = (
            list(Loader(samples, settings, transform, device="cuda", place=place, **options).epoch(1))
            for place in ("device", "stream")
        )
        for want, first, second in zip(expected, device, stream, strict=True):
            assert torch.equal(first.x, second.x)
            assert torch.equal(first.index.cpu(), want.index)
            torch.testing.assert_close(first.x.cpu(), want.x, atol=level, rtol=0)
