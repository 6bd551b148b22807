"""The entry point of ``python -m escapement``, which is the command ``escapement``."""

from escapement.cli import main

if __name__ == "__main__":
    main()
