"""Compare the reports of two runs: what got worse, what got better, what changed."""
