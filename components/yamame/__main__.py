"""``python -m yamame``, the command ``yamame``."""

from yamame.cli.console import main

if __name__ == "__main__":
    main()
