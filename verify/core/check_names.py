"""The names of the checks, in the order of reports: what says most about a wrong kernel comes first."""

# The keys of verify_norm.checks.CHECKS, whose import loads torch.
CHECK_NAMES = (
    *("crash", "signature", "accuracy", "statistics", "distribution", "sums", "nonfinite", "memory", "effects"),
    *(
        "determinism",
        "calls",
        "modes",
        "autograd",
        "honesty",
        "gradient",
        "identities",
        "degenerate",
        "batch_invariance",
    ),
)
