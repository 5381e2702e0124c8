"""Runs the commands and snippets of the documents, and compares what they print with what the pages show.

python docs/site/samples.py                   run all pages; say what differs
python docs/site/samples.py PAGE --write      put what the commands print now into the page; `…` stays

A block ```` ```console ```` has commands after `$ ` and what they print. ```` ```python ```` is run, and a block
```` ```text ```` after it is what it prints. A block with a title is a file of that name in the page's own folder.
```` ```sh ```` has commands for a reader's machine, as `pip install`: those of verify-norm are parsed, not run. In what
is shown, `…` alone on a line stands for any lines, and inside a line for any text; times and versions may differ.
A page that needs other packages names them in a comment, `<!-- needs: liger_kernel -->`; it runs where they are there.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
WIDTH = "100"  # of the terminal: what fits into a page
ALIKE = 0.6  # of lines that say the same with other numbers, by difflib
VARIES = (  # what differs from run to run, and what stands for it
    (re.compile(r"\s+in\s+\d[\d,.]*\s+s\s+\(\d+\s+%\s+in\s+the\s+kernel\)"), " in 0 s (0 % in the kernel)"),  # may wrap
    (re.compile(r"\b\d[\d,.]*\s?s\b"), "0 s"),
    (re.compile(r"^verify-norm \d[\w.]*", re.MULTILINE), "verify-norm 0"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: its language, its file's name or "", its text, and where the text stands."""

    language: str
    title: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What a page shows of a command, what the command prints, and where in the page it stands."""

    command: str
    shown: str
    printed: str
    start: int
    end: int


def pages() -> list[Path]:
    """Return README and every page of the site that a person writes."""
    return [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md"))]


def lacking(text: str) -> list[str]:
    """Return the packages that a page needs and that are not installed."""
    needed = [name for line in re.findall(r"^<!-- needs: (.*) -->$", text, re.MULTILINE) for name in line.split()]
    return [name for name in needed if importlib.util.find_spec(name) is None]


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(m[1], m[2] or "", m[3], m.start(3), m.end(3)) for m in FENCE.finditer(text)]


def commands(block: Block) -> Iterator[tuple[str, str, int, int]]:
    """Yield each command of a console block, what is shown of it, and where that stands in the page."""
    starts = list(re.finditer(r"^\$ (.*)\n", block.text, re.MULTILINE))
    for number, match in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(block.text)
        yield match[1], block.text[match.end() : end], block.start + match.end(), block.start + end


def plain(text: str) -> str:
    """Return text without what differs from run to run and without spaces at the ends of lines."""
    for pattern, instead in VARIES:
        text = pattern.sub(instead, text)
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows what a command prints; `…` stands for any lines, or any text of a line."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\n"
        for line in plain(shown).splitlines()
    ]
    return re.fullmatch("".join(lines), plain(printed)) is not None


def differences(text: str) -> list[Difference]:
    """Run the samples of a page in a folder of its own; return those that print something else than it shows."""
    found = []
    with tempfile.TemporaryDirectory() as folder, working(folder):
        shell, listed = Shell(), blocks(text)
        for block, after in zip(listed, [*listed, None][1:], strict=True):
            if block.title:
                path = Path(block.title)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
                sys.modules.pop(path.stem, None)  # another page, or a test, may have a module of that name
                if path.suffix == ".py" and not any(path.stem in other.text for other in listed if other is not block):
                    shell.python(block.text, path.stem)  # no command names it
            elif block.language == "console":
                for command, shown, start, end in commands(block):
                    printed = shell.run(command)
                    if not matches(shown, printed):
                        found.append(Difference(command, shown, printed, start, end))
            elif block.language == "python":
                printed = shell.python(block.text)
                shown, start, end = ("", block.end, block.end)
                if after and after.language == "text" and not after.title:
                    shown, start, end = after.text, after.start, after.end
                if not matches(shown, printed):
                    found.append(Difference(block.text, shown, printed, start, end))
    return found


class Shell:
    """Runs commands in this process, which has imported torch already; the others in a process of their own."""

    def __init__(self) -> None:
        self.status = 0

    def run(self, command: str) -> str:
        """Return what a command prints to standard output and standard error."""
        if command == "echo $?":
            return f"{self.status}\n"
        name, *arguments = shlex.split(command)
        if name == "verify-norm":
            return self._verify_norm(arguments)
        if name == "pytest":
            return self._pytest(arguments)
        if name != "python":
            raise ValueError(f"{command}: a page's console runs verify-norm, pytest, python and echo $? only")
        done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.status = done.returncode
        return done.stdout

    def _verify_norm(self, arguments: list[str]) -> str:
        from verify_norm.cli import main

        before, sys.argv = sys.argv, ["verify-norm", *arguments]
        try:
            with printing() as out:
                main()
        except SystemExit as end:
            self.status = int(end.code or 0)
        finally:
            sys.argv = before
        return out.getvalue()

    def _pytest(self, arguments: list[str]) -> str:
        import pytest

        with printing() as out:
            self.status = int(pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "--capture=sys", *arguments]))
        return out.getvalue()

    def python(self, source: str, name: str = "__main__") -> str:
        """Return what a program prints, or a module of this name as it is imported."""
        with printing() as out:
            exec(compile(source, f"{name}.py", "exec"), {"__name__": name})
        return out.getvalue()


@contextlib.contextmanager
def printing() -> Iterator[io.StringIO]:
    """Let what the block prints go into a buffer."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        yield out


@contextlib.contextmanager
def working(folder: str) -> Iterator[None]:
    """Work in a folder, on a terminal of a page's width without colours; forget afterwards where its modules are."""
    environment, modules, path, before = dict(os.environ), dict(sys.modules), sys.path[:], Path.cwd()
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1"}
    os.chdir(folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        for name in [n for n, m in sys.modules.items() if _in(folder, m)]:
            del sys.modules[name]
        sys.modules.update(modules)


def _in(folder: str, module: object) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(folder)


def mistakes(text: str) -> list[str]:
    """Return what is wrong with the commands of verify-norm that a page names without running them."""
    named = [block.text for block in blocks(text) if block.language in ("sh", "yaml")]
    named += [line.replace("\n", " ") for line in re.findall(r"`(verify-norm [^`]+)`", FENCE.sub("", text))]
    lines = [line for text in named for line in re.findall(r"\bverify-norm (?:.*\\\n)*.*", text)]
    wrong = [(line, _mistake(shlex.split(line.replace("\\\n", " "), comments=True)[1:])) for line in lines]
    return [f"{line}: {words}" for line, words in wrong if words]


def _mistake(arguments: list[str]) -> str:
    """Return what the command line refuses in a command, or ""; the command is not run."""
    from typer.main import get_command

    from verify_norm.cli.app import app

    command = get_command(app)
    if not arguments:  # the name alone
        return ""
    if arguments[0] in command.commands:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    try:
        command.make_context("verify-norm", arguments)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return ""


def write(path: Path) -> None:
    """Put what the samples of a page print now in the place of what differs."""
    text = path.read_text(encoding="utf-8")
    for one in reversed(differences(text)):
        text = text[: one.start] + abridged(one.shown, one.printed) + text[one.end :]
    path.write_text(text, encoding="utf-8")


def abridged(shown: str, printed: str) -> str:
    """Return what is printed now, abridged as it was shown; all of it where the lines that were shown have no like.

    >>> abridged("…\\nPASS k: 134 cases\\n", "a\\nb\\nPASS k: 137 cases\\n")
    '…\\nPASS k: 137 cases\\n'
    """
    now = [line.rstrip() for line in printed.splitlines()]
    lines, place = list[str](), 0
    for line in shown.splitlines():
        if line == "…":
            lines.append(line)
            continue
        alike = [2.0 if matches(line, one) else SequenceMatcher(None, line, one).ratio() for one in now[place:]]
        best = max(alike, default=0.0)
        if best < ALIKE:
            break
        place += alike.index(best) + 1
        lines.append(line if best > 1 else now[place - 1])
    else:
        if matches(text := "".join(f"{line}\n" for line in lines), printed):
            return text
    return "".join(f"{line}\n" for line in now)


def main(arguments: list[str]) -> int:
    """Run the pages that are named, or all; return 1 if a page shows what no command prints."""
    chosen = [Path(name) for name in arguments if name != "--write"] or pages()
    failed = False
    for path in chosen:
        if lacks := lacking(path.read_text(encoding="utf-8")):
            print(f"{path}: not run, it needs {', '.join(lacks)}")
            continue
        if "--write" in arguments:
            write(path)
            continue
        for one in differences(path.read_text(encoding="utf-8")):
            failed = True
            print(f"{path}: $ {one.command}\n--- shown\n{one.shown}--- printed\n{one.printed}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
