"""`python -m anyaccel` is the same as the command `anyaccel`."""

from anyaccel.cli.main import main

if __name__ == "__main__":
    main()
