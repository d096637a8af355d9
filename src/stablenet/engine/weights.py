"""What entered a run's loss beside its images, one row per training sample: the file weights.parquet.

    id, label, domain        as the manifest names them, in its order
    weight                   mean one over the set or the batch; batch by batch that of the sample's last batch
    offset                   what was added to the logit of the own class; 0 without offsets
    context                  log p(label | context) − log p(label): how much the context speaks for the own label

All as the last epoch used them.
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

NEUTRAL = {"weight": 1.0, "offset": 0.0, "context": 0.0}  # of a sample that counts like in plain training


def tabulate_weights(manifest: Manifest, columns: Mapping[str, Tensor]) -> pd.DataFrame:
    """The table of a method's `sample_columns`."""
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
    """The same table gives the same bytes."""
    write_whole(path, lambda partial: table.to_parquet(partial, engine="pyarrow", compression="zstd", index=False))


def read_weights(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except Exception as error:  # pyarrow raises whatever it likes on broken bytes
        raise UserError(f"{path} is damaged: it is no Parquet file") from error
    lacking = [name for name in ("id", "label", "domain", *NEUTRAL) if name not in table]
    if lacking:
        raise UserError(f"{path} is damaged: it has no column {lacking[0]!r}")
    return table
