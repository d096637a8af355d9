"""Tables from CSV, TSV and Parquet files: any problem with one is reported in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from stablenet.errors import UserError, explain_os_error, shorten_path
from stablenet.files import check_file, read_bytes, write_bytes, write_whole

SUFFIXES = (".csv", ".tsv", ".parquet")


def read_frame(path: Path, *, as_text: bool = False, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a table; a file without one of the `SUFFIXES` is taken for CSV.

    as_text: every cell of a CSV or TSV as it is written, an empty one as "".   columns: of Parquet, None for all.
    """
    check_file(path)
    options: dict[str, Any] = {"dtype": str, "keep_default_na": False} if as_text else {}
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            frame = _read_parquet(path, columns)
        else:
            frame = pd.read_csv(path, sep="\t" if suffix == ".tsv" else ",", **options)
    except UnicodeDecodeError as error:
        raise UserError(f"{shorten_path(path)} is not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
    except (MemoryError, UserError):
        raise
    except OSError as error:
        if error.errno is None:  # of pyarrow, about the contents
            raise _unreadable(path, error) from error
        raise explain_os_error(error, path) from error
    except Exception as error:  # parsers may raise anything on broken data
        raise _unreadable(path, error) from error
    return frame


def _read_parquet(path: Path, columns: Sequence[str] | None) -> pd.DataFrame:
    """In this thread: where memory is short, pyarrow waits for ever for threads that could not start."""
    from pyarrow import BufferReader
    from pyarrow.parquet import ParquetFile

    table = ParquetFile(BufferReader(read_bytes(path))).read(columns=columns, use_threads=False)
    frame: pd.DataFrame = table.to_pandas(use_threads=False)
    return frame


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    write_whole(path, lambda partial: frame.to_csv(partial, index=False))


def write_parquet(frame: pd.DataFrame, path: Path, compression: Literal["snappy", "zstd"] = "snappy") -> None:
    """The same table gives the same bytes. They are written here: pyarrow takes no path that is not UTF-8."""
    write_bytes(path, frame.to_parquet(None, engine="pyarrow", compression=compression, index=False))


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return UserError(f"{shorten_path(path)} cannot be read as a table: {reason}")
