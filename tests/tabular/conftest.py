from __future__ import annotations

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def mixed() -> tuple[pd.DataFrame, np.ndarray]:
    """200 rows: two dependent numeric columns, a category that follows one of them, and a target."""
    generator = np.random.default_rng(3)
    a = generator.normal(size=200)
    b = 0.7 * a + generator.normal(size=200)
    noisy = a + generator.normal(size=200)
    town = np.select([noisy < -0.5, noisy < 0.5], ["Aachen", "Bonn"], "Celle")
    frame = pd.DataFrame({"a": a, "b": b, "town": pd.Categorical(town)}, index=range(1000, 1200))
    return frame, a + 0.3 * generator.normal(size=200)
