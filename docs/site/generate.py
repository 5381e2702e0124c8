"""The reference pages of the site, made from the code: `pages` returns them, and `hooks.py` gives them to mkdocs."""

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from verify_norm.checks import CHECKS
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.contract import Contract
from verify_norm.core.contract_fields import allowed
from verify_norm.core.errors import Exit
from verify_norm.core.known import NAMES, meanings
from verify_norm.core.only import CLAUSES, EXAMPLE
from verify_norm.core.ops import OPS
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.argument_names import ALIASES, FEATURES
from verify_norm.report import schema
from verify_norm.report.cases import CASE, DATA_WORDS, LAYOUT_WORDS
from verify_norm.report.glossary import GLOSSARY
from verify_norm.report.operators import shape
from verify_norm.search.config import COMMANDS, KEYS
from verify_norm.search.options import flags

ROOT = Path(__file__).parents[2]
STATUSES = {
    Exit.PASS: "Pass.",
    Exit.FINDINGS: "Findings. `audit`: also a contradiction of the contract. `compare`, `--baseline`: something got "
    "worse. `same`: the kernels differ. `zoo`: a bug was missed or a right kernel flagged.",
    Exit.NOTHING: "A usage error, or nothing was checked: outputs were compared in less than a tenth of the cases, "
    "because the kernel refuses the others, raises, or returns nothing. `compare`, `--baseline`: the cases differ.",
    Exit.INCOMPLETE: "Incomplete: time or Ctrl-C ended the run before all corner cases, without a finding so far. "
    "`--allow-incomplete` makes it 0; so does `allow_incomplete` in Python and `pyproject.toml`, and "
    "`--norm-allow-incomplete` in pytest.",
    Exit.INTERNAL: "An error of verify-norm itself. Two lines below the traceback say what to report.",
}
DOORS = """In Python a report has the status as `verdict`, and a usage error is a `UsageError`.
`raise_for_findings()` and the tests in pytest fail on 1, 2 and 3. pytest then ends with its own status, 1, or with 4
for a usage error in an option."""

CONSTRUCTED = {  # the arguments of a module's constructor, and what they get
    FEATURES: "the number of elements of weight",
    "normalized_shape": "the last dimensions, as a tuple",
    "num_groups": "the number of groups",
    "eps": "eps of the case",
    "momentum": "momentum of the case",
    "bias": "True if the case has a bias",
    "affine": "True if the case has a weight or a bias",
    "running": "True if BatchNorm keeps running statistics",
}
TYPES = """B, C and M count samples, channels and rows. M is the product of the leading dimensions: `mean` and `rstd`
have one dimension, also where x has three. A backward gets them in this shape and in float32. Those that a forward
returns have the type that the contract's `stats` names, by default float32. A gradient has the type of what it is the
gradient of. `scale` and `amax` have the shape (1,) and are float32, and a quantized y has 8 bits. Its `y_scale` is
float32, one of each row or of each block of a row, (M, K). All other tensors have the type of x; weight and bias may
have another one. `verify-norm show OPERATOR` lists each tensor."""


def pages() -> dict[str, str]:
    """Return the Markdown of each page that is made, by its path in the site."""
    made = {
        "commands": commands,
        "checks": checks,
        "operators": operators,
        "arguments": arguments,
        "contract": contract,
        "only": only,
        "cases": cases,
        "settings": settings,
        "exit-statuses": statuses,
        "json": documents,
        "glossary": glossary,
    }
    found = {f"reference/{name}.md": function() for name, function in made.items()}
    for path, source in {
        "findings.md": "kernels/adapters/THIRD_PARTY.md",
        "measurements.md": "benchmarks/RESULTS.md",
        "contributing.md": "CONTRIBUTING.md",
        "changelog.md": "CHANGELOG.md",
    }.items():
        found[path] = (ROOT / source).read_text(encoding="utf-8")
    return found


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def commands() -> str:
    """Return every command with its arguments and options."""
    from typer.main import get_command

    from verify_norm.cli.app import app

    group: Any = get_command(app)
    parts = ["# Commands\n", _command("verify-norm", group, "verify-norm --kernel K")]
    return "\n".join([*parts, *(_command(name, one) for name, one in _leaves("verify-norm", group))])


def _leaves(title: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command with its whole name; those of a group are commands of their own."""
    for name, one in group.commands.items():
        yield from _leaves(f"{title} {name}", one) if hasattr(one, "commands") else [(f"{title} {name}", one)]


def _command(title: str, command: Any, usage: str = "") -> str:
    words = inspect.getdoc(command.callback) if command.callback else command.help
    rows = []
    for one in command.params:
        name = f"`{', '.join(one.opts)}`" if one.param_type_name == "option" else f"`{one.name.upper()}`"
        default = "" if one.default in (None, "", False, ()) or one.required else f" Default: `{one.default}`."
        rows.append([name, f"{(one.help or '').strip()}{default}"])
    usage = usage or " ".join([title, *(p.name.upper() for p in command.params if p.param_type_name == "argument")])
    listed = table(["argument or option", "meaning"], rows) if rows else "It takes no options.\n"
    return f"## {title}\n\n`{usage}`\n\n{_markdown(words or '')}\n\n{listed}"


def checks() -> str:
    """Return every check with its docstring."""
    first = "# Checks\n\nEach check looks at a run of the kernel. `verify-norm show NAME` prints the same text.\n"
    texts = {name: inspect.getdoc(CHECKS[name].function) or "" for name in CHECK_NAMES}
    return "\n".join([first, *(f"## {name}\n\n{_markdown(text)}\n" for name, text in texts.items())])


def operators() -> str:
    """Return every operator: what it takes and returns."""
    rows = []
    for op in OPS.values():
        takes = ", ".join([tensor.name + " (or None)" * tensor.optional for tensor in op.inputs] + list(op.attrs))
        rows.append([f"`{op.name}`", takes, ", ".join(tensor.name for tensor in op.outputs), op.summary])
    text = "Arguments are bound by name. Trailing outputs may be omitted: all but y, or all but one gradient."
    listed = table(["operator", "takes", "returns", "computes"], rows)
    return f"# Operators\n\n{text}\n\n{listed}\n## Shapes and types\n\n{TYPES}\n\n{_shapes()}"


def _shapes() -> str:
    """Return a table of the shapes of tensors; operators whose tensors have the same shapes are one row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for op in OPS.values():
        one = {tensor.extent: shape(tensor, op) for tensor in (*op.inputs, *op.outputs)}
        like = OPS[op.forward or op.name]
        statistic = next(shape(tensor, like) for tensor in like.outputs if tensor.extent == "statistic")
        affine = f"`{one['affine']}`" if "affine" in one else "–"
        groups.setdefault((f"`{one['data']}`", affine, statistic), []).append(f"`{op.name}`")
    heads = [
        "operators",
        "x, residual, y, residual_out, and gradients of these",
        "weight, bias, dweight, dbias, running_mean, running_var",
        "mean, rstd",
    ]
    return table(heads, ([", ".join(names), *shapes] for shapes, names in groups.items()))


def arguments() -> str:
    """Return the names by which arguments are recognized, of a call and of a module's constructor."""
    rows = {name: [f"`{name}`", ", ".join(f"`{other}`" for other in names)] for name, names in ALIASES.items()}
    built = [[rows[name][0], words, rows[name][1]] for name, words in CONSTRUCTED.items()]
    called = [row for name, row in rows.items() if name not in (FEATURES, "affine", "running")]
    return (
        "# Names of arguments\n\nAn argument is recognized by its name: that of verify-norm, or one that other "
        "projects use, also in capital letters. `--bind` gives any other one, as `--bind x=activations`; the name of "
        "verify-norm stands first. The same names are those of what a kernel returns.\n\n"
        f"{table(['name', 'other names'], called)}\n"
        "## Of a module's constructor\n\nA module's class is constructed for each case. Its constructor may have these "
        "arguments. One with another name keeps its default; if it has none, give it a constant (`--bind "
        f"dim_head=64`), or name an instance.\n\n{table(['name', 'gets', 'other names'], built)}"
    )


def contract() -> str:
    """Return every field of a contract, and the names of known contracts."""
    described = meanings()
    strict = Contract()
    rows = [
        [f"`{f.name}`", allowed(f.name), f"`{getattr(strict, f.name)!r}`", described[f.name]] for f in fields(Contract)
    ]
    known = [
        [f"`{name}`", f"`{one.fields}`" if one.fields else "", f"{one.words}: {one.whose}"]
        for name, one in NAMES.items()
    ]
    return (
        "# Contract fields\n\n[Contracts](../explanation/contracts.md) explains what they are for. "
        "`verify-norm show contracts` prints the same, with the cost of each in ULP.\n\n"
        f"{table(['field', 'values', 'strict', 'meaning'], rows)}\n"
        f"## Names\n\n{table(['name', 'fields', 'meaning'], known)}"
    )


def only() -> str:
    """Return the clauses of --only."""
    rows = [[f"`{name}`", words] for name, words in CLAUSES.items()]
    text = f"`--only` says which cases a kernel takes, as `--only {EXAMPLE}`. Values are joined by `+`."
    return f"# Clauses of --only\n\n{text}\n\n{table(['clause', 'meaning'], rows)}"


def cases() -> str:
    """Return what the layouts and the data of a case are."""
    tables = (("Layouts", LAYOUT_WORDS), ("Data", DATA_WORDS))
    rows = {title: [[f"`{name}`", said] for name, said in words.items()] for title, words in tables}
    parts = [f"## {title}\n\n{table(['name', 'what it is'], found)}" for title, found in rows.items()]
    return "\n".join(["# What a case has in it\n", f"{CASE}\n", *parts])


def settings() -> str:
    """Return the keys of [tool.verify-norm]."""
    known = flags()
    rows = []
    for key, (_, one) in KEYS.items():
        flag = known.get(key)
        words = flag.help if flag else "The path of a file, relative to this one."
        default = f"`{one.default!r}`" if flag else ""
        rows.append([f"`{key}`", f"`{flag.name if flag else '--' + key}`", default, words])
    limits = [
        [f"`{f.name}`", f"`{f.default}`", _parameters(RegressionLimits)[f.name]] for f in fields(RegressionLimits)
    ]
    own = [
        [f"`[tool.verify-norm.{name}]`", ", ".join(f"`{key}`" for key in m.model_fields)]
        for name, m in COMMANDS.items()
    ]
    return (
        "# Settings in pyproject.toml\n\n`[tool.verify-norm]` of the nearest `pyproject.toml` holds for the command "
        "line, Python and pytest. What a command gives wins; `--no-config` and `config=False` ignore it.\n\n"
        f"{table(['key', 'option', 'default', 'meaning'], rows)}\n"
        f"## Of one command\n\n{table(['table', 'keys'], own)}\n"
        f"## Limits of a comparison\n\n`[tool.verify-norm.compare]`:\n\n{table(['key', 'default', 'meaning'], limits)}"
    )


def statuses() -> str:
    """Return the exit statuses."""
    rows = [[str(int(status)), f"`{status.name}`", STATUSES[status]] for status in Exit]
    listed = table(["status", "name", "meaning"], rows)
    return f"# Exit statuses\n\nEvery command ends with one of these.\n\n{listed}\n{DOORS}\n"


def documents() -> str:
    """Return the fields of the JSON files."""
    parts = [
        "# JSON fields\n\n`--json FILE` writes a document; a differentiable kernel has a list with one for each "
        "direction. `verify-norm schema report` prints the JSON Schema. Infinite numbers and NaN are words: JSON has "
        "none. Fields that an older version did not write are not required, and a newer version may add fields.\n"
    ]
    types: dict[str, Any] = {}
    for kind in schema.KINDS:
        made = schema.schema(kind)
        types |= made.get("$defs", {})
        parts.append(f"## {kind}\n\n{_fields(made)}")
    parts.append("# Types in it\n")
    others = {name: one for name, one in sorted(types.items()) if name.lower() not in schema.KINDS}
    parts += [f"## {name}\n\n{_fields(one)}" for name, one in others.items()]
    return "\n".join(parts)


def _fields(made: dict[str, Any]) -> str:
    required = made.get("required", ())
    told = made.get("properties", {}).items()
    rows = [[f"`{name}`", _type(one), "" if name in required else "optional"] for name, one in told]
    described, said = _described(made.get("description", ""))
    rows = [[*row, said.get(row[0].strip("`"), "")] for row in rows] if said else rows
    heads = ["field", "type", "", "meaning"][: 4 if said else 3]
    listed = table(heads, rows) if rows else f"One of {_type(made)}.\n"
    return f"{_markdown(described)}\n\n{listed}"


def _described(docstring: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its list of parameters, and what that says of each; "…" stands for all layouts."""
    before, _, after = docstring.partition("Parameters\n----------\n")
    listed, gap, rest = after.partition("\n\n")
    said: dict[str, str] = {}
    for names, words in re.findall(r"^([\w, …]+) : (.*(?:\n +.*)*)", listed, re.MULTILINE):
        found = [name for name in re.split(r", ", names) if name != "…"]
        found += [f.name for f in fields(CaseSpec) if f.name.endswith("_layout")] * ("…" in names)
        said |= dict.fromkeys(found, re.sub(r"\s+", " ", words).strip())
    return before.rstrip() + gap + rest, said


def _type(one: dict[str, Any]) -> str:
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in one:
        return " or ".join(dict.fromkeys(map(_type, one["anyOf"])))
    if "const" in one or "enum" in one:
        return ", ".join(f"`{value}`" for value in one.get("enum", [one.get("const")]))
    if one.get("type") == "array":
        items = one.get("items") or next(iter(one.get("prefixItems", [{}])), {})
        return f"list of {_type(items)}" if items else "list"
    if isinstance(extra := one.get("additionalProperties"), dict):
        return f"object of {_type(extra)}"
    return str(one.get("type", "any"))


def glossary() -> str:
    """Return the glossary that the page of a report has, too."""
    return "# Glossary\n\n" + "\n".join(f"**{term}**\n:   {words}\n" for term, words in GLOSSARY.items())


def _parameters(described: type) -> dict[str, str]:
    """Return what a docstring in NumPy's style says of each parameter."""
    text = (inspect.getdoc(described) or "").partition("----------\n")[2]
    found = re.findall(r"^(\w+) : (.*(?:\n    .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", words).strip() for name, words in found}


def _markdown(docstring: str) -> str:
    """Return a docstring as Markdown: its sections are headings, and its doctests code."""
    text = re.sub(r"^(\w+)\n-{3,}$", r"**\1**\n", docstring, flags=re.MULTILINE)
    return re.sub(r"((?:^>>>.*\n?(?:^(?!\s*$).*\n?)*)+)", r"```python\n\1\n```\n", text, flags=re.MULTILINE)
