"""Problems on which the fused path is compared with the eager one, on a GPU or interpreted on the CPU."""

import torch

CASES = {
    "paper": ("paper", {}),
    "paper, both pairs": ("paper", {"pairs": "both"}),
    "paper, linear": ("paper", {"num_functions": 0}),
    "paper, share": ("paper", {"num_functions": 0.5}),
    "paper, bandwidth 2": ("paper", {"bandwidth": 2.0}),
    "paper, decayed": ("paper", {"scaling": "standard", "decay_after": 3}),
    "paper, relative": ("paper", {"objective": "relative", "learning_rate": 0.1}),
    "recommended": ("recommended", {}),
    "recommended, features": ("recommended", {"pairs": "features"}),
    "recommended, both pairs": ("recommended", {"pairs": "both", "num_functions": 2}),
    "recommended, retreat": ("recommended", {"on_rise": "retreat", "learning_rate": 2.0, "pairs": "features"}),
    "recommended, guarded": ("recommended", {"min_ess": 0.9, "penalty": 0.0}),
}


def make_problem(n, m, size, device="cpu", seed=0):
    """Rows (n, m) with a constant column, labels (n,) and the memory's weights (n − size,)."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g)
    z = torch.relu(x @ torch.randn(2, m, generator=g) + 0.5 * torch.randn(n, m, generator=g))
    z[:, min(2, m - 1)] = 1.0
    fixed = torch.rand(n - size, generator=g) + 0.5
    fixed = fixed / fixed.mean() if len(fixed) else fixed
    return z.to(device), (x[:, 0] > 0).long().to(device), fixed.to(device)
