from tests.made_run import manifest, run

__all__ = ["manifest", "run"]
