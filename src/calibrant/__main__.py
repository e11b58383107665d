"""`python -m calibrant` is `calibrant`."""

import sys

try:
    from calibrant.cli import main
except KeyboardInterrupt:  # Ctrl-C while modules are imported: nothing was done, so there is nothing to say
    sys.exit(130)

if __name__ == "__main__":
    main()
