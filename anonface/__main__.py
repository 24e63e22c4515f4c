"""``python -m anonface``: the command line."""

from anonface.cli import main

if __name__ == "__main__":
    main()
