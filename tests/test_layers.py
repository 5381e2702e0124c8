"""CONTRIBUTING.md names the layers and the packages that the code has."""

import ast
import re
from itertools import pairwise
from pathlib import Path

from verify_norm.search import config

ROOT = Path(__file__).parent.parent
PROJECT = config.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LAYERS = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]


def folder(package):
    return ROOT / package if package in ("reference", "kernels") else ROOT / "verify" / package


def test_the_diagram_has_the_layers_in_order():
    diagram = PAGE.partition("```mermaid")[2].partition("```")[0]
    named = dict(re.findall(r'(\w+)\["([^"]+)"\]', diagram))
    edges = [
        tuple(re.split(r"\s*-->\s*", re.sub(r'\["[^"]+"\]', "", line.strip())))
        for line in diagram.splitlines()[2:]
        if line.strip()
    ]
    assert all(lower == upper for (_, lower), (upper, _) in pairwise(edges)), "one chain of layers"
    shown = [named.get(name, name) for name in (edges[0][0], *(lower for _, lower in edges))]
    assert shown == LAYERS[1:], "the first layer, __main__, calls cli"


def test_the_table_has_each_package_with_its_own_words():
    packages = {package for layer in LAYERS[1:] for package in layer.split(" | ")} - {"api"}
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE))
    assert table.keys() == packages
    for package, words in table.items():
        docstring = ast.get_docstring(ast.parse((folder(package) / "__init__.py").read_text(encoding="utf-8")))
        assert docstring.splitlines()[0] == words, package


def test_every_file_that_the_page_names_is_there():
    for path in re.findall(r"`((?:verify|reference|kernels|tests)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
