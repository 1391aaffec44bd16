"""``python -m paddle_ext`` is the command ``paddle-ext``."""

from .app.cli import main

if __name__ == "__main__":
    main()
