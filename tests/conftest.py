import pytest
import torch


@pytest.fixture
def one_thread():
    """Sums in a fixed order, which shows in their last bits; and small networks lose by sharing cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
