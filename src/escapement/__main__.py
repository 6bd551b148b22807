"""``python -m escapement`` is the command ``escapement``."""

from escapement.cli import main

if __name__ == "__main__":
    main()
