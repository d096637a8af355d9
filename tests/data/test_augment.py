"""Every batched transform against torchvision's on each image alone, with the same drawn parameters."""

import math

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as vision

from stablenet.data.augment import (
    Augment,
    AugmentSettings,
    Normalization,
    Resize,
    draw_parameters,
)
from stablenet.data.transforms import COLUMNS, Draws, apply_draws, crop_resize
from stablenet.errors import UserError
from stablenet.randomness import combine

STRONG = AugmentSettings(scale=(0.1, 1.0), grayscale=0.5)


def _pixels(count=24, height=37, width=29, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)
    noise[0, :5] = 77  # grey areas have no hue
    noise[1] = torch.tensor([255, 0, 0], dtype=torch.uint8)
    noise[2] = 0
    return noise


def _crop_alone(image, draws, k, size):
    box = [draws.top[k].item(), draws.left[k].item(), draws.height[k].item(), draws.width[k].item()]
    image = vision.resized_crop(image, *box, [size, size], antialias=True)
    return vision.horizontal_flip(image) if draws.flip[k] else image


def _augment_alone(image, draws, k, size):
    image = _crop_alone(image, draws, k, size)
    changes = (vision.adjust_brightness, vision.adjust_contrast, vision.adjust_saturation, vision.adjust_hue)
    for number in draws.order[k].tolist():
        image = changes[number](image, draws.factors[k, number].item())
    return vision.rgb_to_grayscale(image, num_output_channels=3) if draws.gray[k] else image


@pytest.mark.parametrize("size", [16, 29, 64])
def test_crops_and_flips_agree_with_torchvision(size):
    pixels = _pixels()
    draws = draw_parameters(combine(0, 0, torch.arange(24)), 37, 29, STRONG)
    images = pixels.permute(0, 3, 1, 2).float() / 255
    expected = torch.stack([_crop_alone(image, draws, k, size) for k, image in enumerate(images)])
    torch.testing.assert_close(crop_resize(pixels, draws, size), expected, atol=2e-6, rtol=0)


def test_the_whole_chain_agrees_with_torchvision():
    pixels = _pixels()
    draws = draw_parameters(combine(1, 0, torch.arange(24)), 37, 29, STRONG)
    assert len({tuple(order) for order in draws.order.tolist()}) > 12
    images = pixels.permute(0, 3, 1, 2).float() / 255
    expected = torch.stack([_augment_alone(image, draws, k, 32) for k, image in enumerate(images)])
    torch.testing.assert_close(apply_draws(pixels, draws, 32), expected, atol=1e-4, rtol=0)


def test_evaluation_agrees_with_torchvision():
    pixels = _pixels()
    chain = v2.Compose(
        [
            v2.Resize((32, 32), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    expected = torch.stack([chain(image) for image in pixels.permute(0, 3, 1, 2)])
    torch.testing.assert_close(Resize(32, Normalization())(pixels, torch.zeros(24)), expected)


def test_an_identity_draw_changes_nothing():
    still = AugmentSettings(
        scale=(1, 1), ratio=(1, 1), flip=0, brightness=0, contrast=0, saturation=0, hue=0, grayscale=0
    )
    pixels = _pixels(height=20, width=20)
    augmented = Augment(20, Normalization((0, 0, 0), (1, 1, 1)), still)(pixels, torch.arange(24))
    torch.testing.assert_close(augmented, pixels.permute(0, 3, 1, 2).float() / 255, atol=2e-6, rtol=0)


def test_a_sample_does_not_depend_on_its_batch():
    pixels, key = _pixels(), combine(3, 1, torch.arange(24))
    augment = Augment(16, Normalization())
    together = augment(pixels, key)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    apart = torch.cat([augment(pixels[part], key[part]) for part in order.split(7)])
    torch.testing.assert_close(apart, together[order], atol=1e-5, rtol=0)
    assert not torch.allclose(augment(pixels, combine(3, 2, torch.arange(24))), together)


def test_draws_are_distributed_as_torchvisions():
    """Area, aspect, place and rates of 5,000 draws, beside 5,000 of torchvision's own."""
    settings = AugmentSettings()
    draws = draw_parameters(combine(0, 0, torch.arange(5000)), 227, 227, settings)
    theirs = v2.RandomResizedCrop(224, scale=settings.scale)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        boxes = [theirs.make_params([torch.empty(3, 227, 227)]) for _ in range(5000)]
    for name, ours in (("top", draws.top), ("left", draws.left), ("height", draws.height), ("width", draws.width)):
        other = torch.tensor([box[name] for box in boxes]).double()
        error = math.sqrt(2 * other.var() / 5000)
        assert abs(ours.double().mean() - other.mean()) < 4 * error
        assert ours.double().std() / other.std() == pytest.approx(1, abs=0.06)
    smaller = draws.height < 227
    assert draws.top[smaller].min() == 0
    assert (draws.top + draws.height)[smaller].max() == 227  # the last row can be reached
    assert draws.flip.float().mean() == pytest.approx(0.5, abs=0.03)
    assert draws.gray.float().mean() == pytest.approx(0.1, abs=0.02)
    assert draws.factors.amin(0).tolist() == pytest.approx([0.6, 0.6, 0.6, -0.4], abs=0.01)
    assert draws.factors.amax(0).tolist() == pytest.approx([1.4, 1.4, 1.4, 0.4], abs=0.01)
    assert torch.bincount(draws.order @ torch.tensor([64, 16, 4, 1])).count_nonzero() == 24


@pytest.mark.parametrize(("height", "width"), [(200, 20), (20, 200), (30, 30)])
def test_images_that_allow_no_crop_fall_back_to_the_centre(height, width):
    wide = AugmentSettings(scale=(1.0, 1.0), ratio=(0.9, 0.95))
    draws = draw_parameters(torch.arange(3), height, width, wide)
    # what torchvision falls back to
    theirs = v2.RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(0.9, 0.95))
    expected = theirs.make_params([torch.empty(3, height, width)])
    assert draws.height.tolist() == [expected["height"]] * 3
    assert draws.width.tolist() == [expected["width"]] * 3
    assert draws.top.tolist() == [expected["top"]] * 3
    assert draws.left.tolist() == [expected["left"]] * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": (0.9, 0.8)}, "scale must be two increasing"),
        ({"hue": 0.6}, "hue must be between 0 and 0.5"),
        ({"flip": 1.5}, "flip must be between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        AugmentSettings(**settings)


def test_draws_of_an_epoch_survive_being_packed():
    draws = draw_parameters(combine(2, 0, torch.arange(50)), 37, 29, STRONG)
    packed = draws.pack()
    assert packed.shape == (50, COLUMNS)
    for name, values in vars(Draws.unpack(packed)).items():
        assert torch.equal(values, getattr(draws, name)), name
    before = [order.index(1) for order in draws.order.tolist()]
    assert packed[:, 14].tolist() == before


def test_drawing_once_and_picking_rows_is_the_same_as_batch_by_batch():
    pixels, key = _pixels(), combine(3, 1, torch.arange(24))
    for transform in (Augment(16, Normalization()), Resize(16, Normalization())):
        draws = transform.draw(key, 37, 29)
        rows = torch.tensor([5, 5, 2, 19, 0])
        found = transform.apply(pixels, draws[3:8], rows)
        torch.testing.assert_close(found, transform(pixels[rows], key[3:8]), atol=1e-5, rtol=0)


@pytest.mark.gpu
def test_a_gpu_gives_what_the_processor_gives():
    pixels, key = _pixels(), combine(3, 1, torch.arange(24))
    level = 1 / 255 / 0.224  # resized bytes may be rounded to the next level
    for transform, error in ((Augment(16, Normalization()), 1e-4), (Resize(16, Normalization()), 1.01 * level)):
        found = transform(pixels.cuda(), key.cuda())
        torch.testing.assert_close(found.cpu(), transform(pixels, key), atol=error, rtol=0)
