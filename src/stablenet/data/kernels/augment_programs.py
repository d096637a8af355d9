"""Triton kernels of the transforms. `transforms.py` is the reference; `fused_augment.py` launches them.

A program computes BLOCK pixels of one sample. No intermediate images are written: the mean grey of the whole image,
which the contrast change needs, comes from a first launch that computes the same pixels.
"""

from __future__ import annotations

import triton
import triton.language as tl

CONTRAST = tl.constexpr(1)
SATURATION = tl.constexpr(2)
HUE = tl.constexpr(3)
# Columns of a sample's draws.
FLIP = tl.constexpr(4)
GRAY = tl.constexpr(5)
FACTORS = tl.constexpr(6)
ORDER = tl.constexpr(10)
BEFORE_CONTRAST = tl.constexpr(14)
ROUNDING = tl.constexpr(12582912.0)  # 1.5 · 2²³: adding and subtracting it rounds small float32 to even


@triton.jit
def find_taps(target, extent, SIZE: tl.constexpr):
    """Centre, reach and first source pixel of pixel `target` of SIZE, within `extent` source pixels."""
    scale = extent / SIZE
    reach = tl.maximum(scale, 1.0)
    centre = scale * (target + 0.5)
    return centre, reach, tl.floor(centre - reach - 0.5) + 1.0


@triton.jit
def weigh_tap(tap, centre, reach, extent):
    """The triangle's height over a source pixel, zero outside the crop."""
    weight = tl.maximum(1.0 - tl.abs(tap + 0.5 - centre) / reach, 0.0)
    return tl.where((tap >= 0) & (tap < extent), weight, 0.0)


@triton.jit
def resize_tile(
    image_ptr,
    at,
    top,
    left,
    height,
    width,
    flip,
    line,
    SIZE: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
):
    """Red, green and blue, in 0..255, of the pixels `at` of the resized crop.   line: bytes of a source row."""
    row = at // SIZE
    column = at % SIZE
    column = tl.where(flip > 0, SIZE - 1 - column, column)
    centre_y, reach_y, first_y = find_taps(row, height, SIZE)
    centre_x, reach_x, first_x = find_taps(column, width, SIZE)
    red = tl.zeros(at.shape, tl.float32)
    green = tl.zeros(at.shape, tl.float32)
    blue = tl.zeros(at.shape, tl.float32)
    total = tl.zeros(at.shape, tl.float32)
    for tap_y in range(TAPS_Y):
        y = first_y + tap_y
        weight_y = weigh_tap(y, centre_y, reach_y, height)
        for tap_x in tl.static_range(TAPS_X):
            x = first_x + tap_x
            weight = weight_y * weigh_tap(x, centre_x, reach_x, width)
            seen = weight > 0
            place = image_ptr + (top + y).to(tl.int32) * line + (left + x).to(tl.int32) * 3
            red += weight * tl.load(place, mask=seen, other=0).to(tl.float32)
            green += weight * tl.load(place + 1, mask=seen, other=0).to(tl.float32)
            blue += weight * tl.load(place + 2, mask=seen, other=0).to(tl.float32)
            total += weight
    return red / total, green / total, blue / total


@triton.jit
def find_image(pixels_ptr, rows_ptr, sample, height, width, PICK: tl.constexpr):
    """The first byte of a sample's image."""
    row = tl.load(rows_ptr + sample) if PICK else sample
    return pixels_ptr + row.to(tl.int64) * height * width * 3


@triton.jit
def crop_tile(
    pixels_ptr,
    rows_ptr,
    draw_ptr,
    sample,
    at,
    height,
    width,
    PICK: tl.constexpr,
    SIZE: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
):
    """Red, green and blue, in 0..1, of the pixels `at` of a sample's drawn crop."""
    image_ptr = find_image(pixels_ptr, rows_ptr, sample, height, width, PICK)
    top = tl.load(draw_ptr)
    left = tl.load(draw_ptr + 1)
    crop_height = tl.load(draw_ptr + 2)
    crop_width = tl.load(draw_ptr + 3)
    flip = tl.load(draw_ptr + FLIP)
    red, green, blue = resize_tile(
        image_ptr, at, top, left, crop_height, crop_width, flip, width * 3, SIZE, TAPS_Y, TAPS_X
    )
    return red / 255.0, green / 255.0, blue / 255.0


@triton.jit
def luminance(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def blend(value, reference, factor):
    return tl.minimum(tl.maximum(reference + factor * (value - reference), 0.0), 1.0)


@triton.jit
def hue_channel(hue, high, chroma, OFFSET: tl.constexpr):
    sector = hue + OFFSET
    sector = sector - 6.0 * tl.floor(sector / 6.0)
    return high - chroma * tl.minimum(tl.maximum(tl.minimum(sector, 4.0 - sector), 0.0), 1.0)


@triton.jit
def shift_hue(red, green, blue, turns):
    """`transforms.shift_hue`."""
    low = tl.minimum(tl.minimum(red, green), blue)
    high = tl.maximum(tl.maximum(red, green), blue)
    chroma = high - low
    safe = tl.where(chroma > 0, chroma, 1.0)
    from_red = (green - blue) / safe
    from_green = 2.0 + (blue - red) / safe
    from_blue = 4.0 + (red - green) / safe
    hue = tl.where(high == red, from_red, tl.where(high == green, from_green, from_blue)) + 6.0 * turns
    return hue_channel(hue, high, chroma, 5), hue_channel(hue, high, chroma, 3), hue_channel(hue, high, chroma, 1)


@triton.jit
def change_colour(red, green, blue, draw_ptr, step, mean):
    """Apply the step-th colour change in the sample's order.   mean: its mean grey, used for contrast only."""
    change = tl.load(draw_ptr + ORDER + step).to(tl.int32)
    factor = tl.load(draw_ptr + FACTORS + change)
    if change == HUE:
        red, green, blue = shift_hue(red, green, blue, factor)
    else:
        reference = tl.where(change == SATURATION, luminance(red, green, blue), 0.0)
        reference = tl.where(change == CONTRAST, mean, reference)
        red = blend(red, reference, factor)
        green = blend(green, reference, factor)
        blue = blend(blue, reference, factor)
    return red, green, blue


@triton.jit
def gray_program(
    pixels_ptr,  # (m, H, W, 3) uint8
    rows_ptr,  # (b,) int64, rows of the images; read only if PICK
    draws_ptr,  # (b, COLUMNS)
    sums_ptr,  # out: (b, tiles)
    height,
    width,
    PICK: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum of the grey values in a tile just before the contrast change."""
    tile = tl.program_id(0)
    sample = tl.program_id(1)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE * SIZE
    at = tl.minimum(at, SIZE * SIZE - 1)
    draw_ptr = draws_ptr + sample * COLUMNS
    red, green, blue = crop_tile(pixels_ptr, rows_ptr, draw_ptr, sample, at, height, width, PICK, SIZE, TAPS_Y, TAPS_X)
    before = tl.load(draw_ptr + BEFORE_CONTRAST)
    for step in tl.static_range(3):
        if step < before:
            red, green, blue = change_colour(red, green, blue, draw_ptr, step, 0.0)
    gray = tl.where(inside, luminance(red, green, blue), 0.0)
    tl.store(sums_ptr + sample * tl.num_programs(0) + tile, tl.sum(gray, 0))


@triton.jit
def store_tile(
    out_ptr,
    sample,
    at,
    inside,
    red,
    green,
    blue,
    mean_red,
    mean_green,
    mean_blue,
    std_red,
    std_green,
    std_blue,
    SIZE: tl.constexpr,
):
    """Standardize, and store a tile of (b, 3, SIZE, SIZE) in channels-last memory."""
    place = out_ptr + sample.to(tl.int64) * SIZE * SIZE * 3 + at * 3
    tl.store(place, (red - mean_red) / std_red, mask=inside)
    tl.store(place + 1, (green - mean_green) / std_green, mask=inside)
    tl.store(place + 2, (blue - mean_blue) / std_blue, mask=inside)


@triton.jit
def augment_program(
    pixels_ptr,  # (m, H, W, 3) uint8
    rows_ptr,  # (b,) int64, rows of the images; read only if PICK
    draws_ptr,  # (b, COLUMNS)
    sums_ptr,  # (b, tiles) of gray_program
    out_ptr,  # out: (b, 3, SIZE, SIZE), channels last
    height,
    width,
    mean_red,
    mean_green,
    mean_blue,
    std_red,
    std_green,
    std_blue,
    PICK: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,  # of a sample, rounded up to a power of two
):
    """Crop, resize, flip, change colours in the drawn order, convert to grey if drawn, and standardize a tile."""
    tile = tl.program_id(0)
    sample = tl.program_id(1)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE * SIZE
    at = tl.minimum(at, SIZE * SIZE - 1)
    draw_ptr = draws_ptr + sample * COLUMNS
    red, green, blue = crop_tile(pixels_ptr, rows_ptr, draw_ptr, sample, at, height, width, PICK, SIZE, TAPS_Y, TAPS_X)
    each = tl.arange(0, TILES)
    tiles = tl.num_programs(0)
    sums = tl.load(sums_ptr + sample * tiles + each, mask=each < tiles, other=0.0)
    mean = tl.sum(sums, 0) / (SIZE * SIZE)
    for step in tl.static_range(4):
        red, green, blue = change_colour(red, green, blue, draw_ptr, step, mean)
    gray = luminance(red, green, blue)
    to_gray = tl.load(draw_ptr + GRAY) > 0
    red = tl.where(to_gray, gray, red)
    green = tl.where(to_gray, gray, green)
    blue = tl.where(to_gray, gray, blue)
    store_tile(
        out_ptr,
        sample,
        at,
        inside,
        red,
        green,
        blue,
        mean_red,
        mean_green,
        mean_blue,
        std_red,
        std_green,
        std_blue,
        SIZE,
    )


@triton.jit
def resize_program(
    pixels_ptr,  # (m, H, W, 3) uint8
    rows_ptr,  # (b,) int64, rows of the images; read only if PICK
    out_ptr,  # out: (b, 3, SIZE, SIZE), channels last
    height,
    width,
    mean_red,
    mean_green,
    mean_blue,
    std_red,
    std_green,
    std_blue,
    PICK: tl.constexpr,
    SIZE: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Resize whole images, round to bytes as torchvision does, and standardize a tile."""
    sample = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE * SIZE
    at = tl.minimum(at, SIZE * SIZE - 1)
    image_ptr = find_image(pixels_ptr, rows_ptr, sample, height, width, PICK)
    red, green, blue = resize_tile(image_ptr, at, 0, 0, height, width, 0, width * 3, SIZE, TAPS_Y, TAPS_X)
    store_tile(
        out_ptr,
        sample,
        at,
        inside,
        ((red + ROUNDING) - ROUNDING) / 255.0,
        ((green + ROUNDING) - ROUNDING) / 255.0,
        ((blue + ROUNDING) - ROUNDING) / 255.0,
        mean_red,
        mean_green,
        mean_blue,
        std_red,
        std_green,
        std_blue,
        SIZE,
    )
