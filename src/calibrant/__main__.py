"""`python -m calibrant` is `calibrant`; torchrun starts it this way."""

from calibrant.cli import main

if __name__ == "__main__":
    main()
