"""The commands beside the main one: about the tool, and proofs of it. `verify_norm.cli` puts them together."""
