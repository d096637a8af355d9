import pytest
import torch


@pytest.fixture
def one_thread():
    """Sums in a fixed order, whatever else the machine does: how threads divide them shows in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
