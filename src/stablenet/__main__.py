"""`python -m stablenet` is the command `stablenet`."""

from stablenet.cli.main import run

if __name__ == "__main__":
    run()
