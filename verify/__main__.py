"""`python -m verify_norm`: the command line."""

from verify_norm.cli.app import main

main()
