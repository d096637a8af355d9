"""The file weights.parquet: sample weights and offsets of a run, one row per training sample.

    id, label, domain        as in the manifest, in its order
    weight                   mean one over the set or the batch; for weights per batch, from the sample's last batch
    offset                   added to the logit of the sample's class; 0 without offsets
    context                  log p(label | context) − log p(label): how strongly the context predicts the sample's label

All values are those of the last epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from stablenet.data.manifest import Manifest
from stablenet.errors import UserError
from stablenet.files import write_whole
from stablenet.frames import read_frame

NEUTRAL = {"weight": 1.0, "offset": 0.0, "context": 0.0}  # of a sample in unweighted training


def tabulate_weights(manifest: Manifest, columns: Mapping[str, Tensor]) -> pd.DataFrame:
    """Tabulate a method's `sample_columns`."""
    rows = manifest.part("train")
    label = rows["label"].to_numpy()
    table = pd.DataFrame(
        {
            "id": rows["id"],
            "label": np.array(manifest.classes, object)[label],
            "domain": np.array(manifest.domains, object)[rows["domain"].to_numpy()],
        }
    )
    for name, value in {**NEUTRAL, **columns}.items():
        if isinstance(value, Tensor):
            found = value.detach().float().cpu().numpy()
            table[name] = found if found.ndim == 1 else found[np.arange(len(label)), label]
        else:
            table[name] = np.full(len(rows), value, np.float32)
    return table


def save_weights(path: Path, table: pd.DataFrame) -> None:
    """Write the table; the same table gives the same bytes."""
    write_whole(path, lambda partial: table.to_parquet(partial, engine="pyarrow", compression="zstd", index=False))


def read_weights(path: Path) -> pd.DataFrame:
    table = read_frame(path)
    lacking = [name for name in ("id", "label", "domain", *NEUTRAL) if name not in table]
    if lacking:
        raise UserError(f"{path} is damaged: it has no column {lacking[0]!r}")
    return table
