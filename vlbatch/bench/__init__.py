"""Benchmarks that a reader can repeat, each with `python -m vlbatch.bench.NAME`."""
