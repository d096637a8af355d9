"""`python -m stablenet` runs the `stablenet` command."""

from stablenet.cli.main import run

if __name__ == "__main__":
    run()
