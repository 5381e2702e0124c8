"""The zoo: known bugs as small wrong kernels, and kernels that are right but look wrong. A table; no torch, no Triton.

A verifier is as good as what it detects here and what it passes. Each bug comes from a public tracker or one of five
published texts, and is written anew: the mistake alone, in a kernel of ours that is right without it.
"""

from verify_norm.kernels.zoo.allowed import ALLOWED
from verify_norm.kernels.zoo.bugs import BUGS
from verify_norm.kernels.zoo.chains import CHAINS
from verify_norm.kernels.zoo.cheats import CHEATS
from verify_norm.kernels.zoo.example import Example
from verify_norm.kernels.zoo.launches import LAUNCHES
from verify_norm.kernels.zoo.quantizing import QUANTIZED
from verify_norm.kernels.zoo.right import RIGHT
from verify_norm.kernels.zoo.rotations import ROTATIONS
from verify_norm.kernels.zoo.seeds import SEEDS
from verify_norm.kernels.zoo.seldom import SELDOM

ZOO: dict[str, Example] = {
    row.name: row
    for row in (*BUGS, *LAUNCHES, *SELDOM, *SEEDS, *CHAINS, *QUANTIZED, *ROTATIONS, *CHEATS, *RIGHT, *ALLOWED)
}
