"""The hook of pre-commit: checks the kernels in the files of a commit. `.pre-commit-hooks.yaml` starts it.

    python -m verify_norm.cli.hook [OPTIONS] FILE.py ...

The options are those of the command verify-norm. A file that defines nothing to call, such as an `__init__.py` that
imports, is left out. One that defines functions, but no norm, is an error: a hook that checks nothing must not pass.
"""

import sys

from verify_norm.cli import main as run
from verify_norm.core.errors import UsageError
from verify_norm.loading.several import callables
from verify_norm.search.config import defaults
from verify_norm.search.request import interpret


def main() -> None:
    """Run the command line on the kernels of the files, and exit with its status."""
    words = sys.argv[1:]
    first = next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))
    options, files = words[:first], words[first:]
    try:
        interpret(always="cpu" in (*options, defaults()[0].get("device")))  # before a file imports Triton
        chosen = [file for file in files if callables(file)]
    except UsageError:
        chosen = files  # the command line says what is wrong
    for file in files:
        if file not in chosen:
            print(f"verify-norm: {file} defines nothing to call: not checked", file=sys.stderr)
    if files and not chosen:
        sys.exit(0)
    sys.argv = ["verify-norm", *options, *(word for file in chosen for word in ("--kernel", file))]
    run()


if __name__ == "__main__":
    main()
