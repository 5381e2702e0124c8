"""The arithmetic of a kernel, inferred from its outputs on crafted inputs: each statement comes with its evidence."""
