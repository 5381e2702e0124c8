"""Print the tables from the results in benchmarks/results.

python benchmarks/tables.py             print RESULTS.md
python benchmarks/tables.py brief       print the summary and the lines that docs/results.md takes
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from table import brief, markdown
from table import summary as table_of

RESULTS = Path(__file__).parent / "results"
MISTAKES = {
    "eps_outside": "eps outside the root",
    "n_minus_1": "N − 1 in the variance",
    "no_c2": "no c2 in dx",
    "one_pass": "one-pass variance",
    "partials_bf16": "partial sums in bf16",
    "stats_bf16": "statistics saved in bf16",
    "xhat_bf16": "x̂ rounded to bf16",
}
TITLE = "# Results\n\n`python benchmarks/tables.py` prints this page from `benchmarks/results`."
PRESETS = "perf", "fp8", "chains", "heads", "channels", "seed001", "seed003", "seed004", "choices"
SPEED = (
    "GB/s of the bytes that must move. `copy` copies as many bytes in the same run. In parentheses: our speed relative "
    "to this copy and to the fastest peer whose results are right. A `wrong` result exceeds its bound; it is not timed."
)
PROFILES = (
    "Memory, L2 and issue slots: percent of their peak. L2 hits: percent of all sectors. `in place`: the L2 keeps what "
    "the previous launch left there; other rows start with an empty cache."
)


def about(*runs: dict[str, Any]) -> str:
    """Return the environment of these runs: versions, device and dates."""
    text = []
    for key in runs[0]["environment"]:
        values = dict.fromkeys(str(run["environment"][key]) for run in runs)
        text.append(f"{key} {' and '.join(sorted(values))}")
    return ", ".join(text)


def bounds() -> str:
    """Return the error bounds' false alarms, and the largest error/bound of correct and of wrong kernels."""
    found = json.loads((RESULTS / "bounds.json").read_text())
    strict, wrong = found["strict"], found["wrong"]

    def largest(output: str, dtype: str, ops: tuple[str, ...] = ("layernorm", "rmsnorm", "groupnorm")) -> str:
        rows = [strict[key] for op in ops if (key := f"{op} {output} {dtype}") in strict]
        return f"{max(row['largest'] for row in rows):.2f}" if rows else "–"

    outputs = ("y", "mean", "rstd", "dx", "dweight", "dbias")
    right = [
        [
            output,
            *(largest(output, "float32", (op,)) for op in ("layernorm", "rmsnorm", "groupnorm")),
            largest(output, "float16"),
            largest(output, "bfloat16"),
        ]
        for output in outputs
    ]
    least = min(
        (wrong[f"{name} {dtype}"]["largest"], words, dtype)
        for name, words in MISTAKES.items()
        for dtype in ("float32", "float16", "bfloat16")
    )
    alarms = sum(row["alarms"] for kind in ("strict", "weaker") for row in found[kind].values())
    return (
        f"{found['cases']:,} cases, seed {found['seed']}, {found['date']}: {alarms} false alarms. "
        "The largest error/bound of correct kernels:\n\n"
        + markdown(["output", "LayerNorm fp32", "RMSNorm fp32", "GroupNorm fp32", "all, fp16", "all, bf16"], right)
        + f"\n\nEach kernel with one mistake ({', '.join(MISTAKES.values())}) exceeds its bound in every type. "
        f"The smallest error/bound among them is {least[0]:.0f}, of {least[1]} in {least[2]}."
    )


def chains() -> str:
    """Return the same of each chain, and whether a z rounded to bfloat16 is detected."""
    found = json.loads((RESULTS / "chains.json").read_text())
    largest: dict[str, dict[str, float]] = {}
    for key, row in found["strict"].items():
        op, output, dtype = key.split()
        kind = "statistics" if output in ("mean", "rstd") else output if output in ("y", "dx") else "others"
        place = f"{kind} fp32" if dtype == "float32" else {"float16": "all, fp16"}.get(dtype, "all, bf16")
        largest.setdefault(op, {}).setdefault(place, 0.0)
        largest[op][place] = max(largest[op][place], row["largest"])
    columns = ("y fp32", "statistics fp32", "dx fp32", "others fp32", "all, fp16", "all, bf16")
    rows = [[f"`{op}`".replace("|", " \\| "), *(f"{of[c]:.2f}" if c in of else "–" for c in columns)]
            for op, of in largest.items()]  # fmt: skip
    alarms = sum(row["alarms"] for kind in ("strict", "weaker") for row in found[kind].values())
    wrong = [row for key, row in found["wrong"].items() if row["alarms"]]
    return (
        f"{found['cases']:,} cases, seed {found['seed']}, {found['date']}: {alarms} false alarms. "
        "The largest error/bound of correct kernels:\n\n"
        + markdown(["chain", *columns], rows)
        + f"\n\nz rounded to bfloat16 before each stage is detected in {len(wrong)} of 3 types."
    )


def quantized_chains() -> str:
    """Return the same of each chain that quantizes: of y, and of its scale."""
    found = json.loads((RESULTS / "quantized_chains.json").read_text())
    rows: dict[str, dict[str, str]] = {}
    for key, row in found["strict"].items():
        op, output, dtype = key.split()
        rows.setdefault(op, {})[output] = f"{row['largest']:.2f}" + f" ({dtype})" * (output == "y")
    alarms = sum(row["alarms"] for kind in ("strict", "weaker") for row in found[kind].values())
    wrong = {key.split()[1]: row["alarms"] for key, row in found["wrong"].items() if key.startswith("z_bf16")}
    table = [[f"`{op}`".replace("|", " \\| "), of["y"], of.get("y_scale", "–")] for op, of in rows.items()]
    return (
        f"{found['cases']:,} cases, seed {found['seed']}, {found['date']}: {alarms} false alarms. "
        "The largest error/bound of correct kernels; a scale of few bits is exact unless near the edge of a step:\n\n"
        + markdown(["chain", "y", "y_scale"], table)
        + f"\n\nz rounded to bfloat16 before is detected in {sum(n > 0 for n in wrong.values())} of {len(wrong)} types."
    )


def long_sums() -> str:
    """Return where mistakes hide and which check detects them, and how near right kernels come to a probable error."""
    found, right = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("mutants", "sums"))
    rows: dict[str, dict[str, str]] = {}
    for row in found["table"]:
        hides = row["seeds"] - max(row["convicted_by"].values(), default=0)
        bounded = any(check != "sums" for check in row["convicted_by"])
        words = "hides" if hides == row["seeds"] else "`sums` alone" if not bounded else "detected"
        name = f"{row['op'].removeprefix('layernorm_')}: {row['mistake']}"
        size = f"{'×'.join(map(str, row['shape']))} {row['dtype']}"
        rows.setdefault(size, {})[name] = words
    names = [name for name in rows[next(iter(rows))] if not name.endswith(": none")]
    table = [[size, *(", ".join(n for n in names if row[n] == how) or "–" for how in ("`sums` alone", "hides"))]
             for size, row in rows.items()]  # fmt: skip
    kinds = (" float32", " float32 products")
    worst = [max(value for key, value in right["largest"].items() if key.endswith(kind)) for kind in kinds]
    text = [
        f"LayerNorm with one mistake, {found['date']}: what the check `sums` alone detects, and what no check does. A "
        "size with few rows shows no mistake of a sum over rows.",
        markdown(["size", "`sums` alone", "hides"], table),
        f"Right kernels in {right['looked']:,} random cases ({right['date']}): the largest error over tolerance in "
        f"float32 is {worst[0]:.2f}, and {worst[1]:.2f} where sums are matrix products.",
    ]
    return "\n\n".join(text)


def given() -> str:
    """Return which mistakes in the use of given statistics are detected, by the offset of x."""
    found = json.loads((RESULTS / "mutants.json").read_text())
    rows: dict[str, list[str]] = {}
    for row in found["given"]:
        count = max(row["convicted_by"].values(), default=0)
        rows.setdefault(row["mistake"], []).append(f"{count} of {row['seeds']}, {row['beyond_own']}")
    offsets = dict.fromkeys(f"offset {row['offset']:g}" for row in found["given"])
    table = markdown(["mistake", *offsets], [[name, *cells] for name, cells in rows.items()])
    return (
        f"LayerNorm's backward with one mistake in its use of the given mean and rstd, 64×256 float32, {found['date']}:"
        " the seeds in which it is detected, and those in which it exceeds the bound of a kernel that computes its own."
        f"\n\n{table}"
    )


def gradients() -> str:
    """Return the table of wrong backwards that gradient checks detect, by shape."""
    found = json.loads((RESULTS / "gradcheck.json").read_text())
    shapes = [tuple(row["shape"]) for row in found["table"]]
    shapes = sorted(set(shapes))
    rows = []
    for method in dict.fromkeys(row["method"] for row in found["table"]):
        cells = []
        for shape in shapes:
            row = next(r for r in found["table"] if r["method"] == method and tuple(r["shape"]) == shape)
            if row["run"]:
                false = f", {row['accused']} false" if row["accused"] else ""
                cells.append(f"{row['killed']:.1f} of {row['mutants']}, {1000 * row['seconds']:.1f} ms{false}")
            else:
                cells.append(f"would take {row['would_take_seconds'] / 60:,.0f} min")
        rows.append([method, *cells])
    table = markdown(["method", *("×".join(map(str, shape)) for shape in shapes)], rows)
    turns = found["alternated"]
    times = ", ".join(f"{name} {value:.0f}" for name, value in turns["times_as_fast"].items())
    faster = f"In turns at {'×'.join(map(str, turns['shape']))}, times as fast as slow gradcheck: {times}."
    right = found["right_functions"]
    alarms = (
        f"{right['functions']} right functions at random points (far from 0, constant rows, zeros, ties, one row, one "
        f"element a row), {right['cases']:,} runs in float64, float32, bfloat16: {right['accused']} falsely flagged, "
        f"and in {right['judged']:,} a gradient could be judged."
    )
    return (
        "Wrong backwards detected, the median time for a right one, and the number of right ones falsely flagged "
        f'("false"), on one CPU thread:\n\n{table}\n\n{faster}\n\n'
        "Functions with few outputs, or with corners: for each mistake the number of seeds at which it was detected, "
        'and of those at which the right function was falsely flagged ("false"). '
        f"{few_outputs(found['functions']['rows'])}\n\n{alarms}"
    )


def few_outputs(rows: list[dict[str, Any]]) -> str:
    """Return a table for each list of mistakes: how many seeds detect each, by function and checker."""
    tables = []
    for mistakes in dict.fromkeys(tuple(row["detected"]) for row in rows):
        some = [row for row in rows if tuple(row["detected"]) == mistakes]
        by = {(row["function"], tuple(row["shape"]), row["checker"]): row for row in some}
        checkers = list(dict.fromkeys(row["checker"] for row in some))
        lines = []
        for name, shape in dict.fromkeys(key[:2] for key in by):
            found = [by.get((name, shape, checker)) for checker in checkers]
            lines.append([f"{name} of {'×'.join(map(str, shape))}", *map(_cell, found)])
        tables.append(f"{', '.join(mistakes)}:\n\n{markdown(['function', *checkers], lines)}")
    return "\n\n".join(tables)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    false = f", {row['accused']} false" if row["accused"] else ""
    return f"{' '.join(map(str, row['detected'].values()))} of {row['seeds']}{false}"


def reports(folder: str) -> str:
    """Return the table of all kernels' reports in a folder of results."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((RESULTS / folder).glob("*.json")):
        kernel, shapes = path.stem.rsplit("-", 1)
        found.setdefault(kernel, {})[shapes] = json.loads(path.read_text())
    rows = []
    at_full_size = any("models" in by for by in found.values())
    for kernel, by in found.items():
        row = [kernel]
        for shapes in ("fuzz", "models") if at_full_size else ("fuzz",):
            if shapes not in by:
                row += ["–"] * 4
                continue
            report = by[shapes]
            elements = sum(t["elements"] for t in report["tallies"]) / 1e6
            row += [
                str(len(report["findings"])),
                f"{report['cases']:,}",
                f"{elements:.0f} M",
                f"{report['seconds']:.0f} s",
            ]
            if shapes == "fuzz":
                row.append(f"{max(t['ratio'] for t in report['tallies'] if t['dtype'] == 'float32'):.2f}")
        rows.append(row)
    head = ["kernel", "findings", "cases", "elements", "time", "error/bound fp32"]
    text = about(*(report for both in found.values() for report in both.values()))
    if at_full_size:
        head += ["findings", "cases", "elements", "time"]
        text += ". The last four columns are the norm shapes of real models, at full size"
    return f"{text}:\n\n{markdown(head, rows)}"


def summary(folder: str) -> str:
    """Return one sentence about all reports in a folder of results."""
    found = [json.loads(path.read_text()) for path in sorted((RESULTS / folder).glob("*.json"))]
    fuzz, models = ([r for r in found if r["settings"]["shapes"] == shapes] for shapes in ("fuzz", "models"))
    cases = [report["cases"] for report in fuzz]
    slowest = max(report["seconds"] for report in fuzz)
    elements = sum(tally["elements"] for report in found for tally in report["tallies"]) / 1e6
    findings = sum(len(report["findings"]) for report in found)
    full = sum(report["cases"] for report in models)
    sized = f" and {full} norm inputs of real models at full size" if full else ""
    return (
        f"{len(fuzz)} kernels, {sum(cases):,} random cases (at least {min(cases):,} for each kernel, in at most "
        f"{slowest:.0f} s){sized}, {elements:,.0f} million elements: {findings} findings."
    )


def zoo() -> str:
    """Return the table of wrong kernels detected, by class of bug, and of right ones flagged, for every policy."""
    runs = {path.stem: json.loads(path.read_text()) for path in sorted((RESULTS / "zoo").glob("*.json"))}
    seeds = {name: runs.pop(name) for name in list(runs) if name.endswith("-right-seeds")}
    there = {o["name"]: o for o in runs["h200"]["outcomes"]}
    here, on_gpu = ([run for name, run in runs.items() if name.startswith(f"{at}-wrong")] for at in ("cpu", "gpu"))
    policies = [p for p in next(iter(there.values()))["policies"] if not p.startswith("gradcheck")]

    rows, last = [], "all wrong kernels"
    wrong = [o for o in there.values() if o["wrong"]]
    for kind in [*sorted({o["class"] for run in [*here, *on_gpu] for o in run["outcomes"] if o["wrong"]}), last]:
        counts = [least(found, kind, last) for found in (here, on_gpu)]
        judged = [o for o in wrong if kind in (o["class"], last)]
        rows.append([kind, *counts, *(share(judged, p) for p in policies)])
    right = [o for o in there.values() if not o["wrong"]]
    flagged = [f"{len(run['summary']['alarms'])} of {run['summary']['kernels']}" for _, run in sorted(seeds.items())]
    rows.append(["right kernels flagged", *flagged, *(share(right, p) for p in policies)])
    text = [
        "Wrong kernels that each policy detects, by class of bug, of those to which it applies. The last row counts "
        f"the right kernels that it flags. verify-norm ran on all kernels (the lowest count of {len(here)} seeds on "
        f"a CPU, and of {len(on_gpu)} on a GPU), the published policies on an H200 on the first {len(wrong)} wrong "
        f"ones and the first {len(right)} right ones.",
        markdown(["class of bug", "verify-norm, CPU", f"verify-norm, {device(on_gpu[0])}", *policies], rows),
    ]
    text += [over_seeds(name, found) for name, found in sorted(seeds.items())]
    missed = Counter(o["name"] for run in on_gpu for o in run["outcomes"] if not o["right"])
    if missed:
        said = ", ".join(f"{name} in {count}" for name, count in sorted(missed.items()))
        text += [f"Of the {len(on_gpu)} runs on an {device(on_gpu[0])}, some missed a kernel: {said}."]
    text += [on_a_cpu(runs["cpu-against"], there, policies)] if "cpu-against" in runs else []
    return "\n\n".join(text)


def least(found: list[dict[str, Any]], kind: str, every: str) -> str:
    """Return how many wrong kernels of one class the run detects that misses most of them, of how many."""
    chosen = [[o["right"] for o in run["outcomes"] if o["wrong"] and kind in (o["class"], every)] for run in found]
    if not any(chosen):
        return "–"
    worst = max(chosen, key=lambda run: run.count(False))
    return f"{sum(worst)} of {len(worst)}"


def device(run: dict[str, Any]) -> str:
    """Return the short name of the GPU of a run, as H100."""
    return str(run["environment"]["device"]).split()[1]


def order() -> str:
    """Return after how many corner cases each wrong kernel of the zoo is detected."""
    run = json.loads((RESULTS / "order.json").read_text())
    found = sorted((kernel for kernel in run["kernels"] if kernel["cases"]), key=lambda kernel: -kernel["cases"])
    cases, seconds = [kernel["cases"] for kernel in found], sorted(kernel["seconds"] for kernel in found)
    within = [f"{sum(case <= limit for case in cases)} of {len(run['kernels'])}" for limit in (11, 22, 44)]
    row = [
        *within,
        f"{sum(cases) / len(cases):.1f}, {cases[0]}",
        f"{seconds[len(seconds) // 2]:.1f} s, {seconds[-1]:.1f} s",
    ]
    last = ", ".join(f"{kernel['name']} {kernel['cases']}" for kernel in found[:6])
    return (
        f"{about(run)}. Wrong kernels of the zoo that the first corner cases detect, the case that is the first to "
        "detect one, and the CPU seconds until then, interpreted.\n\n"
        f"{markdown(['in 11 cases', 'in 22', 'in 44', 'cases: mean, most', 'CPU: median, most'], [row])}\n\n"
        f"The last to be detected: {last}."
    )


def share(outcomes: list[dict[str, Any]], policy: str) -> str:
    """Return how many kernels the policy fails, of those to which it applies."""
    verdicts = [o["policies"][policy]["caught"] for o in outcomes]
    judged = [caught for caught in verdicts if caught is not None]
    return f"{sum(judged)} of {len(judged)}" if judged else "–"


def over_seeds(name: str, found: dict[str, Any]) -> str:
    """Return the results of benchmarks/zoo_seeds.py in a sentence."""
    of = found["summary"]
    seeds = "1 seed" if of["seeds"] == 1 else f"{of['seeds']} seeds"
    return (
        f"The right kernels on {'a CPU' if name.startswith('cpu') else f'an {device(found)}'}, {seeds}, by "
        f"benchmarks/zoo_seeds.py: {of['kernels']} kernels, {of['runs']} runs, {of['cases']:,} cases (at least "
        f"{of['fewest']} a run), {len(of['alarms'])} flagged."
    )


def on_a_cpu(run: dict[str, Any], there: dict[str, dict[str, Any]], policies: list[str]) -> str:
    """Return the policies' verdicts on a CPU, and the verdicts that differ from those on an H200."""
    here = {o["name"]: o for o in run["outcomes"]}
    wrong, right = ([o for o in here.values() if o["wrong"] is is_wrong] for is_wrong in (True, False))
    found, alarms = sum(o["right"] for o in wrong), sum(not o["right"] for o in right)
    ours = ["verify-norm", f"{found} of {len(wrong)}", f"{alarms} of {len(right)}"]
    rows = [ours, *([p, share(wrong, p), share(right, p)] for p in policies)]
    words = {None: "not judged", True: "fail", False: "pass"}
    differ: dict[tuple[str, str, str], list[str]] = {}
    for policy in policies:
        for name in sorted(here.keys() & there.keys()):
            cpu, gpu = here[name]["policies"][policy]["caught"], there[name]["policies"][policy]["caught"]
            if cpu is not gpu:
                differ.setdefault((policy, words[cpu], words[gpu]), []).append(name)
    differing = [[", ".join(names), *verdicts] for verdicts, names in differ.items()]
    undone = sum(v["detail"].startswith("not done") for o in here.values() for v in o["policies"].values())
    return (
        f"The same comparison on a CPU with {run['cores']} cores took {run['seconds'] / 60:.0f} minutes; {undone} "
        "verdicts were cut by a time limit:\n\n"
        + markdown(["policy", "wrong kernels detected", "right ones flagged"], rows)
        + "\n\nVerdicts that differ between the CPU and the H200:"
        + (f"\n\n{markdown(['kernels', 'policy', 'CPU', 'H200'], differing)}" if differing else " none.")
    )


def short() -> str:
    """Return what was verified on an H200, how fast it judges, and all lines that docs/results.md may take."""
    from race import Row

    found = [json.loads((RESULTS / "bench" / f"{name}.json").read_text()) for name in ("perf", "fp8")]
    rows = brief([Row.read(record) for report in found for record in report["rows"]])
    return f"{summary('h200')}\n\n{default_runs()}\n\n{rows}"


def speed(*names: str) -> str:
    """Return the tables of these presets of benchmarks/run.py; a preset without results is left out."""
    from race import Row

    text = [SPEED]
    for name in names:
        path = RESULTS / "bench" / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            text.append(
                f"`--preset {name}`: {about(found)}\n\n{table_of([Row.read(record) for record in found['rows']])}"
            )
    return "\n\n".join(text)


def host_times() -> str:
    """Return the table of benchmarks/host.py, or "" without results."""
    from host import lines

    path = RESULTS / "bench" / "host.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text())
    return f"{about(found)}; the median and the minimum of {found['rounds']} rounds:\n\n{lines(found['rows'])}"


def default_runs() -> str:
    """Return a sentence on the default run of layernorm_bwd, with an empty and with a warm cache of Triton."""
    found = json.loads((RESULTS / "rate" / "layernorm_bwd.json").read_text())
    runs = [run for run in found["runs"] if run["run"] == "default"]
    cold, warm = (f"{run['cases']:,} cases in {run['seconds']:.0f} s" for run in runs)
    where = f"On an {found['environment']['device']}, `verify-norm --kernel layernorm_bwd`"
    return f"{where} judges {cold} where Triton compiles everything, and {warm} where it has done so before."


def judging() -> str:
    """Return how many cases a second whole runs judge, and what a case costs by its size, of each kernel."""
    return "\n\n".join(_judging(json.loads(path.read_text())) for path in sorted((RESULTS / "rate").glob("*.json")))


def _judging(found: dict[str, Any]) -> str:
    runs = [
        [
            run.get("run", "default"),  # results before 2026-11-28 have no other
            run["state"],
            str(run["workers"]),
            str(run["cases"]),
            f"{run['cases_a_second']:.1f}",
            f"{run['seconds']:.0f}",
        ]
        for run in found["runs"]
    ]
    parts, costs = ("draw", "truth", "case"), dict[int, dict[str, dict[str, Any]]]()
    for row in found["sizes"]:
        costs.setdefault(row["elements"], {})[row["judge"]] = row
    sizes = [
        [f"2^{size.bit_length() - 1}"]
        + [f"{by[judge][part] * 1000:.2f}" if judge in by else "–" for judge in ("numpy", "device") for part in parts]
        for size, by in costs.items()
    ]
    names = [f"{part}, {judge}" for judge in ("NumPy", "device") for part in parts]
    of_runs = markdown(["run", "Triton", "workers", "cases", "cases/s", "seconds"], runs)
    return (
        f"{found['kernel']}; {about(found)}.\n\n{of_runs}"
        f"\n\nMilliseconds to draw the inputs, for truth and bound, and of a whole case with three checks:\n\n"
        + markdown(["elements", *names], sizes)
    )


def exhausted() -> str:
    """Return the runs on all of a space."""
    runs = [json.loads(path.read_text()) for path in sorted((RESULTS / "exhaust").glob("*.json"))]
    rows = [
        [
            run["asked"]["kernel"],
            f"{'all ' * run['all']}{run['done']:,} {run['asked']['what']}",
            f"{tally['output']} {tally['dtype']}",
            f"{tally['elements'] - tally['unjudged']:,}",
            f"{tally['ulp']['maximum']:.2f}",
            f"{tally['ratio']:.3f}",
            str(len(run["violations"])),
            f"{run['seconds']:.0f}",
        ]
        for run in runs
        for tally in run["tallies"]
    ]
    head = ["kernel", "items", "output", "elements judged", "max ULP", "error/bound", "wrong", "seconds"]
    return f"{about(*runs)}.\n\n{markdown(head, rows)}" if runs else ""


def profiles() -> str:
    """Return the tables of benchmarks/ncu.py."""
    from ncu import lines

    text = [PROFILES]
    for path in sorted((RESULTS / "bench").glob("ncu*.json")):
        found = json.loads(path.read_text())
        text.append(f"{about(found)}\n\n{lines(found['profiles'])}")
    return "\n\n".join(text)


def results() -> str:
    """Return the text of RESULTS.md."""
    parts = {
        "Error bounds, by benchmarks/bounds.py": bounds(),
        "Error bounds of chains, by benchmarks/chains.py": chains(),
        "Error bounds of chains that quantize, by benchmarks/quantized_chains.py": quantized_chains(),
        "Long sums, by benchmarks/mutants.py and benchmarks/sums.py": long_sums(),
        "Given statistics, by benchmarks/mutants.py": given(),
        "Gradient checks, by benchmarks/gradcheck.py": gradients(),
        "The zoo, by verify-norm zoo --against all": zoo(),
        "The order of the corner table, by benchmarks/order.py": order(),
        "All rows, by verify-norm exhaust": exhausted(),
        "The judge, by benchmarks/rate.py": judging(),
        "The kernels on an H200, by benchmarks/verify_all.py": summary("h200") + "\n\n" + reports("h200"),
        "Speed, by benchmarks/run.py": speed(*PRESETS),
        "Host time, by benchmarks/host.py": host_times(),
        "Profiles, by benchmarks/ncu.py": profiles(),
    }
    return "\n\n".join([TITLE, *(f"## {title}\n\n{text}" for title, text in parts.items() if text)])


if __name__ == "__main__":
    print(short() if sys.argv[1:] == ["brief"] else results())
