"""`python -m crossknn` is the command line."""

from crossknn.cli import main

if __name__ == "__main__":
    main()
