"""The loops: each improves one thing by proposing, running, judging, and keeping what is better."""
