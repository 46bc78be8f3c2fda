"""Made-up records, iterations, fleets and clocks, for tests and benchmarks."""
