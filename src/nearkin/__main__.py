"""``python -m nearkin``, which is what ``torchrun`` can start."""

from nearkin.cli import main

if __name__ == "__main__":
    main()
