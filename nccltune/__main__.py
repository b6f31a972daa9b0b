"""Entry point of ``nccltune`` and ``python -m nccltune``."""

from nccltune.cli import main

if __name__ == "__main__":
    main()
