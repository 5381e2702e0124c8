"""The command line: `verify-norm --kernel K`, and its commands."""

from verify_norm.cli.app import main as main
