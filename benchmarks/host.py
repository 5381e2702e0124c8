"""Time the host side of an eager call, and its parts.

    python benchmarks/host.py [--rounds 9] [--json FILE]

At 8×1024 no call waits for the GPU. The speed of a machine changes from minute to minute, so all calls run in
alternation, in rounds. The table has the median and the minimum over the rounds; each round is a median too. Without a
GPU this is a smoke test; its times mean nothing. Exit status: 0, 2 for a usage error.
"""

import argparse
import json
import sys
from statistics import median
from typing import Any

import torch
from plan import Parser
from run import facts
from table import markdown
from timing import Call, Clock
from torch import Tensor
from torch.nn import functional

from verify_norm.core import files
from verify_norm.core.errors import UsageError

M, N, EPS = 8, 1024, 1e-5


class Nothing(torch.autograd.Function):
    """A function that takes as many tensors as a norm and computes nothing: the cost of autograd alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Allocate y."""
        ctx.save_for_backward(weight, bias)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        """Return existing tensors of the right shapes."""
        return dy, *ctx.saved_tensors


def calls(device: str) -> dict[str, Call]:
    """Return the calls to time, by name; each has run once."""
    from verify_norm.kernels import layernorm, rmsnorm
    from verify_norm.kernels.rows.plan import forward_plan

    form: Any = {"dtype": torch.bfloat16, "device": device}
    x, dy, weight, bias = (torch.ones(shape, **form) for shape in ((M, N), (M, N), N, N))
    y, mean, rstd = layernorm.layernorm_fwd(x, weight, bias, EPS)
    plan = forward_plan(x.device, N, 8, x.dtype, x.dtype, x.dtype, False, True, False)
    numbers = (M, N // plan.vec, N // plan.vec, 1, 0, 1, plan.ahead, 1, EPS, None)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    modules = layernorm.LayerNorm(N, **form), torch.nn.LayerNorm(N, **form)

    def inferred(module: Any) -> Call:
        return torch.no_grad()(lambda: module(x))

    def both(function: Any) -> Call:
        return lambda: torch.autograd.grad(function(*leaves), leaves, dy, allow_unused=True)

    def here(function: Any) -> Call:
        call = both(function)

        def alone() -> Any:
            with torch.autograd.set_multithreading_enabled(False):
                return call()

        return alone

    def ours(*t: Tensor) -> Any:
        return layernorm.apply(*t, EPS, None)

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (N,), weight, bias, EPS)

    found: dict[str, Call] = {
        "a tensor is allocated": lambda: torch.empty_like(x),
        "a kernel is launched": lambda: plan.launch(
            -(-M // plan.rows), x, None, None, y, weight, bias, mean, rstd, None, None, None, None, *numbers
        ),
        "LN forward, ours": lambda: layernorm.layernorm_fwd(x, weight, bias, EPS),
        "LN forward, torch": lambda: torch.native_layer_norm(x, (N,), weight, bias, EPS),
        "LN backward, ours": lambda: layernorm.layernorm_bwd(dy, x, weight, bias, mean, rstd, EPS),
        "RMS forward, ours": lambda: rmsnorm.rmsnorm_fwd(x, weight, EPS),
        "RMS forward, torch": lambda: functional.rms_norm(x, (N,), weight, EPS),
        "LN module in no_grad, ours": inferred(modules[0]),
        "LN module in no_grad, torch": inferred(modules[1]),
        "forward and backward of nothing": both(Nothing.apply),
        "LN forward and backward, ours": both(ours),
        "LN forward and backward, torch": both(theirs),
        "RMS forward and backward, ours": both(lambda x, w, _: rmsnorm.apply(x, w, EPS, 0.0, None)),
        "RMS forward and backward, torch": both(lambda x, w, _: functional.rms_norm(x, (N,), w, EPS)),
        "nothing, backward in the calling thread": here(Nothing.apply),
        "LN, backward in the calling thread, ours": here(ours),
        "LN, backward in the calling thread, torch": here(theirs),
    }
    for call in found.values():
        call()
    return found


def lines(rows: list[dict[str, Any]]) -> str:
    """Return the host times as a Markdown table."""
    return markdown(
        ["host time", "median", "minimum"],
        [[row["call"], f"{row['host_us']:.1f} µs", f"{row['least_us']:.1f} µs"] for row in rows],
    )


def main(argv: list[str] | None = None) -> int:
    """Time the calls, print the table, write the JSON; return the exit status."""
    made = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=9, help="rounds over all calls [9]")
    made.add_argument("--json", default="", metavar="FILE")
    try:
        o = made.parse_args(argv)
        if o.rounds < 1:
            raise UsageError(f"--rounds: expected at least 1, got {o.rounds}")
        files.writable(o.json)
    except UsageError as error:
        print(f"host.py: {error}", file=sys.stderr)
        return 2
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        from verify_norm.running.interpreter import patch

        patch.enable()  # before anything imports Triton
        print("no GPU: this is a smoke test; its times mean nothing")
    device, rounds = ("cuda:0", o.rounds) if on_gpu else ("cpu", 1)
    with Clock(device) as clock:
        timed = calls(device)
        spent = [{name: clock.host(call) for name, call in timed.items()} for _ in range(rounds)]
    each = {name: [one[name] for one in spent] for name in timed}
    rows = [{"call": name, "host_us": median(us), "least_us": min(us)} for name, us in each.items()]
    print(lines(rows))
    if o.json:
        report = {"environment": facts(device), "smoke": not on_gpu, "shape": [M, N], "rounds": rounds, "rows": rows}
        files.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n", o.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
