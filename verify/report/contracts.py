"""The contracts that --contract takes: names, fields, and what the weaker ones cost."""

from collections.abc import Iterator

from rich.console import Console

from verify_norm.cases.allowance import allowances, words
from verify_norm.core.contract import Contract
from verify_norm.core.contract_fields import allowed
from verify_norm.core.diagnosis import two_digits
from verify_norm.core.known import NAMES, STRICT, WEAKER, declared, meanings, read
from verify_norm.core.ops import OPS
from verify_norm.report.markup import escape
from verify_norm.report.terminal import table

OP = "add_layernorm"  # what every field is about, but these
OTHERS = {"offset_weight": "add_rmsnorm"} | dict.fromkeys(("scale_floor", "e8m0", "packing"), "add_rmsnorm_quant")
OTHERS["z"] = "gated_rmsnorm"  # the last one: a contract of a quantized norm names z too
TYPES = ("bfloat16", "float32")


def show_contracts(console: Console) -> None:
    """Print every name and field with its meaning, then what each contract allows."""
    console.print(
        "--contract takes names and fields, such as --contract llama,inplace=y:x. They change what a kernel declares.\n"
    )
    named = table("name", "fields", "what it means", folded=("fields", "what it means"))
    for name, known in NAMES.items():
        named.add_row(name, known.fields.replace(",", ", "), escape(f"{known.words}: {known.whose}"))
    console.print(named)
    fields, explained = table("field", "values", "what it means", folded=("values", "what it means")), meanings()
    for name in STRICT:
        fields.add_row(name, allowed(name), escape(explained[name]))
    console.print("", fields, "")
    costs = list(_costs())
    outputs = list(dict.fromkeys(name for *_, numbers in costs for name in numbers))
    made = table("contract", "x", *outputs, words=2, whole=True)
    for name, dtype, numbers in costs:
        made.add_row(name, dtype, *(numbers.get(output, "") for output in outputs))
    console.print(made)
    others = ", ".join(f"{op} for {name}" for name, op in OTHERS.items())
    console.print(
        f"The last table has the largest error that {OP} ({others}) is allowed, in ULP of the strict output's type, "
        f"for {words(f'{OP}_fwd')}: of the strict contract, and where another allows something else."
    )


def _costs() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield a contract, a type of x, and what each output is allowed there, "" where that is what strict allows."""
    for text in (*NAMES, *(known.fields for known in WEAKER)):
        op = next((op for name, op in OTHERS.items() if name in read(text)), OP)
        for dtype in TYPES:
            numbers, strict = _numbers(op, text, dtype), _numbers(op, "strict", dtype)
            if text != "strict":
                numbers = {name: number if number != strict[name] else "" for name, number in numbers.items()}
            if any(numbers.values()):
                yield text, dtype, numbers


def _numbers(base: str, text: str, dtype: str) -> dict[str, str]:
    """Return what a contract allows each output of an operator, in both directions if there are two."""
    found = {}
    for op in (f"{base}_fwd", f"{base}_bwd"):
        if op in OPS:
            for output, most in allowances(op, declared(Contract(), text, OPS[op]), dtype).items():
                found[output] = two_digits(most)
    return found
