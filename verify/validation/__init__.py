"""Shows whether the verifier itself can be trusted."""
