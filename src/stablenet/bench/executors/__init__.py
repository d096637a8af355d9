"""Where runs are carried out: processes of this machine, or a Ray cluster. The files they leave are the same."""

from stablenet.bench.executors.base import RETRIES, Event, Executor, Tell
from stablenet.bench.executors.local import LocalExecutor
from stablenet.bench.executors.places import Place, find_places
from stablenet.bench.executors.ray import RayExecutor

__all__ = ["RETRIES", "Event", "Executor", "LocalExecutor", "Place", "RayExecutor", "Tell", "find_places"]
