"""The table of cheats: kernels that are written to pass a judge, and right kernels that keep or defer what they may.

Each class of cheat comes from a public collection of them, and is written anew. `docs/explanation/cheats.md` says which
check detects which class, and which classes no check in the kernel's own process can detect.
"""

from dataclasses import replace

from verify_norm.kernels.zoo.example import VALUES, Example, Y, row

_Row = tuple[str, str, str]  # the name, which ends in the function's; what it does; the source


def _cheats(module: str, outputs: tuple[str, ...], caught_by: tuple[str, ...], *rows: _Row) -> tuple[Example, ...]:
    """Return the rows of one module whose cheats are detected by the same checks, in the same outputs."""
    found = []
    for name, line, source in rows:
        function = name.partition("_")[2]
        op = "layernorm_fwd" if function in LAYERNORMS else "rmsnorm_fwd"
        where = f"cheats.{module}:{function}"
        made = row(name, op, where, "cheat", line, source, outputs=outputs, caught_by=caught_by, backend="torch")
        found.append(made)
    return tuple(found)


LAYERNORMS = ("stale_graph", "bias_alone", "without_affine")
CALL: tuple[str, ...] = ()  # no output is wrong, but the call

CHEATS: tuple[Example, ...] = (
    *_cheats(
        *("replays", Y, ("honesty",)),
        ("C01_by_version", "outputs are kept by the address and version of x", "kernelguard: POINTER_REPLAY"),
    ),
    *_cheats(
        *("replays", Y, ("calls",)),
        ("C02_on_the_tensor", "outputs are kept as an attribute of x", "pygpubench, cached by id"),
        ("C04_by_first_row", "outputs are kept while the first row stays the same", "kernelguard: LAST_CALL_REPLAY"),
        ("C05_by_norm", "outputs are kept by the norm of x", "kernelguard: content signatures"),
    ),
    *_cheats(
        *("replays", Y, (*VALUES, "calls")),
        ("C03_by_shape", "outputs are those of a shape's first call", "kernelguard: SHAPE_OUTPUT_REPLAY"),
    ),
    *_cheats(
        *("replays", Y, VALUES),
        ("C06_after_warm_up", "right in a hundred calls, then a fourth of the columns stands for all", "llm.c #851"),
        ("C07_precomputed", "knows the inputs of public seeds alone", "reference-kernels e9984e4"),
    ),
    *_cheats(
        *("replays", ("y", "mean", "rstd"), (*VALUES, "calls")),
        ("C08_stale_graph", "a graph reads the tensors that it was captured with", "kernelbench.com PR #7"),
    ),
    *_cheats(
        *("shortcuts", Y, (*VALUES, "memory")),
        ("C09_left_over", "returns fresh memory, where the reference's result may be", "Sakana AI, KernelBench PR #82"),
    ),
    *_cheats(
        *("shortcuts", CALL, ("memory",)),
        ("C10_zeroes_inputs", "makes x zero, and returns what is right then", "KernelBench PR #82: zero_out_kernel"),
    ),
    *_cheats(
        *("shortcuts", ("y",), ("accuracy", "memory")),
        ("C11_identity", "returns x", "kernelbench.com: rewardhack_cases.md"),
    ),
    *_cheats(
        *("shortcuts", ("y",), ("accuracy",)),
        ("C12_bias_alone", "returns the bias", "KernelBench #97, BackendBench"),
        ("C13_without_affine", "leaves out weight and bias", "kernelbench.com: strict=False"),
        ("C14_in_half", "computes in float16 whatever the type", "kernelguard: PRECISION_DOWNGRADE"),
        ("C17_one_row", "normalizes the first row and repeats it", "KernelBench #165"),
    ),
    *_cheats(
        *("shortcuts", Y, VALUES),
        ("C15_known_sizes", "statistics of half a row where the size is no model's", "kernelguard: HARDCODED_SHAPES"),
        ("C16_sampled_statistics", "statistics of 64 columns", "robust-kbench: loose tolerances"),
        ("C18_sees_guards", "float16 where x has a storage of its own", "tests told from use"),
    ),
    *_cheats(
        *("shortcuts", ("y",), ("honesty", "modes")),
        ("C19_sees_modes", "float16 where none of torch's modes is on", "tests told from use"),
    ),
    *_cheats(
        *("late", ("y",), ("honesty", "accuracy")),
        ("C20_in_worker", "a thread computes y after the call", "pygpubench: submission_thread_fd"),
        ("C25_lazy_class", "y is a tensor that computes when it is used", "SOL-ExecBench: check_lazy_outputs"),
        ("C26_lazy_methods", "y is a tensor whose own methods compute", "reference-kernels PR #161"),
    ),
    *_cheats(
        *("late", ("y",), ("honesty",)), ("C28_negated", "y is negated where torch alone knows it", "lazy outputs")
    ),
    *_cheats(
        *("late", CALL, ("honesty", "memory")),
        ("C21_scratch_in_inputs", "a thread overwrites x after the call", "SOL-ExecBench: check_thread_injection"),
    ),
    *_cheats(
        *("late", CALL, ("honesty",)),
        ("C27_lazy_pair", "what is returned computes when it is unpacked", "SOL-ExecBench: check_lazy_outputs"),
    ),
    *_cheats(
        *("late", CALL, ("effects",)),
        ("C22_at_collection", "leaves work to the garbage collector", "deferred work"),
        ("C23_by_signal", "leaves work to a signal", "pygpubench: signals"),
        ("C24_watching", "leaves a mode of torch on", "BackendBench: operators overridden"),
    ),
    *_cheats(
        *("judges", CALL, ("honesty",)),
        ("C30_patches_allclose", "replaces what compares tensors", "SOL-ExecBench: check_monkey_patch"),
        ("C31_patches_tensors", "replaces torch.Tensor.detach", "reference-kernels PR #161"),
        ("C32_patches_numpy", "replaces functions of NumPy", "kernelguard"),
        ("C33_patches_clock", "replaces the clock", "reference-kernels #162"),
        ("C34_patches_verifier", "replaces a function of this verifier", "SOL-ExecBench: check_eval_integrity"),
        ("C35_patches_code", "replaces the code of a function of this verifier", "pygpubench: patched .text"),
    ),
    *_cheats(
        *("imported", CALL, ("honesty",)),
        ("C36_patches_at_import", "its module replaces what compares tensors", "KernelBench: kernel_static_checker"),
    ),
    *_cheats(
        *("tells", Y, ("honesty",)),
        ("C37_sees_modules", "float16 where no judge is among the modules", "tests told from use"),
        ("C38_sees_stack", "float16 where no judge is on the stack", "tests told from use"),
        ("C39_sees_command", "float16 where neither command nor environment names a test", "tests told from use"),
    ),
    *(
        replace(one, needs="host", reason="NumPy does not store on a GPU")
        for one in _cheats(
            *("late", CALL, ("honesty",)), ("C40_filled", "NumPy computes when y is unpacked", "lazy outputs")
        )
    ),
    *_cheats(
        *("leaves", CALL, ("effects",)),
        ("C41_timer", "leaves work to a timer", "pygpubench: signals"),
        ("C42_class_of_x", "gives x another class, which lies", "lazy inputs"),
        ("C43_method_of_x", "gives x a method of its own", "reference-kernels PR #161"),
        ("C44_saved_hooks", "leaves hooks of saved tensors on", "BackendBench: operators overridden"),
        ("C45_level", "leaves a level of torch.func on", "BackendBench: operators overridden"),
        ("C46_rounding", "lets the processor round down", "a judge's arithmetic changed"),
    ),
    *_cheats(
        *("watches", CALL, ("honesty",)),
        ("C47_at_import", "its module watches each call of the judge", "kernelguard: FRAME_WALK"),
    ),
    *(
        replace(one, needs="gpu", reason="a CPU has no streams")
        for one in _cheats(
            *("late", ("y",), ("accuracy", "determinism", "honesty")),
            ("C29_in_other_stream", "y is computed in a stream that nobody waits for", "KernelBench PR #82"),
        )
    ),
)
