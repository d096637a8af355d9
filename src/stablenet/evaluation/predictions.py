"""Predictions with what is known of the samples: the file between a model and everything that is computed after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stablenet.data.manifest import Manifest
from stablenet.errors import UserError
from stablenet.files import write_whole
from stablenet.metrics import GroupCounts, calibration_error

PREFIX = "p_"  # of the columns with probabilities, one per class


@dataclass(frozen=True)
class Predictions:
    """Logits (n, classes) float32 of the samples of one part, and their ids, classes (n,) and domains (n,)."""

    ids: Sequence[str]
    logits: Tensor
    y: Tensor
    domain: Tensor

    @property
    def probabilities(self) -> Tensor:
        """(n, classes), rows sum to one."""
        return self.logits.double().softmax(1).float()


def measure(predictions: Predictions, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """The figures of `GroupCounts`, the worst group by name, and the calibration error."""
    counts = GroupCounts(len(domains), len(classes), torch.device("cpu"))
    counts.add(predictions.logits, predictions.y, predictions.domain)
    return {
        **counts.figures(domains, classes),
        "worst_group": _find_worst_group(predictions, domains, classes),
        "calibration_error": calibration_error(predictions.probabilities, predictions.y),
    }


def _find_worst_group(predictions: Predictions, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """The pair of domain and class with the lowest accuracy; of equal ones the largest."""
    right = (predictions.logits.argmax(1) == predictions.y).numpy()
    frame = pd.DataFrame({"domain": predictions.domain.numpy(), "label": predictions.y.numpy(), "right": right})
    groups = frame.groupby(["domain", "label"])["right"].agg(["mean", "size"]).reset_index()
    worst = groups.sort_values(["mean", "size"], ascending=[True, False], kind="stable").iloc[0]
    return {
        "domain": domains[int(worst["domain"])],
        "class": classes[int(worst["label"])],
        "accuracy": float(worst["mean"]),
        "count": int(worst["size"]),
    }


def tabulate(predictions: Predictions, manifest: Manifest) -> pd.DataFrame:
    """One row per sample: id, domain, class, right, predicted, its probability, p_<class> for all classes."""
    classes, domains = np.array(manifest.classes, object), np.array(manifest.domains, object)
    rows = pd.DataFrame(
        {
            "id": list(predictions.ids),
            "domain": domains[predictions.domain.numpy()],
            "class": classes[predictions.y.numpy()],
            "right": (predictions.logits.argmax(1) == predictions.y).numpy(),
        }
    )
    return add_predictions(rows, predictions.logits, manifest.classes)


def add_predictions(rows: pd.DataFrame, logits: Tensor, classes: Sequence[str]) -> pd.DataFrame:
    """The rows with predicted, probability and p_<class>; columns of these names that were there are replaced."""
    probabilities = logits.double().softmax(1).float().numpy()
    names = np.array(classes, object)
    columns: dict[str, Any] = {
        "predicted": names[probabilities.argmax(1)],
        "probability": probabilities.max(1),
        **_name_probabilities(probabilities, classes),
    }
    kept = rows[[column for column in rows.columns if column not in columns]]
    return pd.concat([kept, pd.DataFrame(columns, index=rows.index)], axis=1)


def _name_probabilities(probabilities: Any, classes: Sequence[str]) -> dict[str, Any]:
    """One column p_<class> per class from an array (n, classes)."""
    return {f"{PREFIX}{name}": probabilities[:, number] for number, name in enumerate(classes)}


def check_table_path(path: Path) -> None:
    """Tables are CSV or Parquet."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"predictions are written as .csv or .parquet, got {path.name!r}")


def save_table(table: pd.DataFrame, path: Path) -> None:
    """CSV or Parquet, as the file's ending says, whole or not at all."""
    check_table_path(path)
    write = table.to_csv if path.suffix.lower() == ".csv" else table.to_parquet
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda partial: write(partial, index=False))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
