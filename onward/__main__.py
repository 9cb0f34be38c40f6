"""`python -m onward`: the command line, where its script is not on the PATH."""

from onward.cli.main import main

if __name__ == "__main__":
    main()
