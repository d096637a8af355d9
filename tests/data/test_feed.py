"""Reading ahead: the same batches, errors passed on, no thread left behind."""

import threading

import pytest
import torch

from stablenet.data.feed import ResidentFeed, StreamFeed, read_ahead
from stablenet.data.loader import MemoryPixels

CPU = torch.device("cpu")


def _reader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "stablenet-read-ahead"]


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_reading_ahead_keeps_the_batches(depth):
    batches = [torch.full((2,), k) for k in range(20)]
    assert all(a is b for a, b in zip(read_ahead(batches, depth), batches, strict=True))
    assert _reader_threads() == []


def test_no_more_than_the_depth_is_read_ahead():
    started = []
    enough = threading.Event()

    def batches():
        for k in range(50):
            started.append(k)
            if len(started) == 5:
                enough.set()
            yield torch.zeros(1)

    reader = read_ahead(batches(), 3)
    next(reader)
    assert enough.wait(5)  # one taken, three waiting, one in hand
    assert not threading.Event().wait(0.1)
    assert len(started) == 5
    reader.close()
    assert _reader_threads() == []


def test_an_error_of_the_reader_is_raised_where_the_batches_are_used():
    def batches():
        yield torch.zeros(1)
        raise OSError("disk gone")

    reader = read_ahead(batches(), 2)
    next(reader)
    with pytest.raises(OSError, match="disk gone"):
        next(reader)
    assert _reader_threads() == []


def test_both_feeds_give_the_rows_of_the_part():
    pixels = MemoryPixels(
        [str(k) for k in range(9)], torch.arange(9).to(torch.uint8).view(9, 1, 1, 1).expand(9, 2, 2, 3)
    )
    rows = torch.tensor([8, 3, 5, 1])
    batches = [torch.tensor([0, 2]), torch.tensor([3]), torch.tensor([], dtype=torch.int64)]
    for feed in (ResidentFeed(pixels, rows, CPU), StreamFeed(pixels, rows, CPU, 2)):
        images = [image for image, picked in feed.images(batches) if picked is None]
        assert [image[:, 0, 0, 0].tolist() for image in images] == [[8, 5], [1], []]
        assert images[2].shape == (0, 2, 2, 3)


@pytest.mark.gpu
def test_both_feeds_agree_on_a_gpu():
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 256, (500, 32, 32, 3), generator=generator, dtype=torch.uint8)
    pixels = MemoryPixels([str(k) for k in range(500)], data)
    rows = torch.randperm(500, generator=generator)[:300]
    device = torch.device("cuda")
    batches = list(torch.randperm(300, generator=generator).split(32))
    resident = ResidentFeed(pixels, rows, device).images([batch.to(device) for batch in batches])
    stream = StreamFeed(pixels, rows, device, 3).images(batches)
    for positions, first, second in zip(batches, resident, stream, strict=True):
        torch.cuda._sleep(1_000_000)  # the copy must not run ahead of what uses its memory
        images, picked = first
        assert torch.equal(images[picked].cpu(), data[rows[positions]])
        assert torch.equal(second[0].cpu(), data[rows[positions]])
