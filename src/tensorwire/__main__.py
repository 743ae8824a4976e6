"""`python -m tensorwire`, where the command is not on the PATH."""

from tensorwire.cli.main import main

main()
