"""``python -m autoeidetic``: the command line."""

from .commands import main

if __name__ == "__main__":
    raise SystemExit(main())
