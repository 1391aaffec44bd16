"""``python -m paddle_ext`` is the command ``paddle-ext``."""

from .cli import main

if __name__ == "__main__":
    main()
