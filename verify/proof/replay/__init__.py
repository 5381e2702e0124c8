"""Replays certificates: a second, smaller reading of their TTIR, which shares no code with the prover."""
