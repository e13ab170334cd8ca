"""``python -m seedbed``: the command line, where the command itself is not on the path."""

from seedbed.cli.main import main

if __name__ == "__main__":
    main()
