"""`python -m verify_norm`: the command line."""

from verify_norm.cli import main

main()
