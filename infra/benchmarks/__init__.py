"""Benchmarks of what the README promises: one module a question, `python -m infra.benchmarks` asks them all."""
