"""Entry point of ``python -m tensorwire``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(program="python -m tensorwire"))
