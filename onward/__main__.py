"""`python -m onward`: run the command line where the `onward` script is not on the PATH."""

from onward.cli.main import main

if __name__ == "__main__":
    main()
