"""A Diagnosis: which weaker contract explains the findings of an output, as data and in words."""

from dataclasses import dataclass

from verify_norm.core.known import NAMES, caution, joined, read, write

LATE = "time ran out"  # begins what is untold where the run has no more time


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far an output may be off in a typical case, in ulp of `dtype`, by two contracts."""

    case: str
    output: str
    dtype: str
    own: float
    weaker: float

    @property
    def gain(self) -> float:
        """How many times larger the allowed errors are."""
        return self.weaker / self.own

    @property
    def loses(self) -> bool:
        """Whether the weaker contract allows larger errors, in two digits."""
        return self.gain > 1 and two_digits(self.weaker) != two_digits(self.own)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Which contract, of those that verify-norm knows, explains all findings of an output; of the call if it is None.

    `contract` has the changed fields, as --contract takes them: under it the checks find nothing in `failing` cases
    that failed and in `fresh` ones. It is "" where no contract does, or where `untold` says why that is not known.
    `words` and `whose` say what the contract means and which library is known for it; `tried` counts contracts.
    """

    output: str | None
    contract: str = ""
    words: str = ""
    whose: str = ""
    allows: Allowance | None = None  # None where `contract` is ""
    failing: int = 0
    fresh: int = 0
    tried: int = 0
    untold: str = ""


def two_digits(value: float) -> str:
    """Return an allowance in two digits.

    >>> two_digits(0.5006), two_digits(1206.2)
    ('0.5', '1,206')
    """
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def sentence(one: Diagnosis, given: str = "") -> str:
    """Return the diagnosis in words; `given` is the --contract of the run."""
    if one.untold:
        more = "; a run with more --seconds may tell" if one.untold.startswith(LATE) else ""
        return f"it is not known whether a weaker contract explains it: {one.untold}{more}"
    if not one.contract:
        of = one.output or "the call"
        return f"no contract that verify-norm knows explains it: under each of them a finding of {of} remains"
    whose = f" ({one.whose})" if one.whose else ""
    option = option_of((one.contract,), given)
    declares = f"--contract {option} declares it{caution(read(one.contract))}"
    return f"explained by {one.contract}, {one.words}{whose}: {declares}. {_cost(one.allows)}"


def _cost(a: Allowance | None) -> str:
    if a is None or not a.loses:
        return "It allows no larger errors"
    more, less = two_digits(a.weaker), two_digits(a.own)
    return f"It loses precision: it allows {a.output} {more} ULP of {a.dtype}, {less} without it ({a.case})"


def option_of(contracts: tuple[str, ...], given: str = "") -> str:
    """Return the --contract that declares all of these, and what the run was `given`; a name if one says it.

    >>> option_of(("partials=x", "xhat=x")), option_of(("inplace=dx:dy",), "llama")
    ('llama', 'llama,inplace=dx:dy')
    """
    fields = joined(contracts)
    if not given:
        return next((name for name, known in NAMES.items() if fields == read(known.fields)), write(fields))
    parts = [part for part in given.split(",") if part.partition("=")[0].strip() not in fields]
    return ",".join((*parts, write(fields)))
