"""Benchmarks that compare like with like, each in a module of its own."""
