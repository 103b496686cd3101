"""Benchmarks: each a module with `main()`, run as `python -m bench.NAME [--quick]`."""
