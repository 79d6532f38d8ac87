"""Report what this machine can isolate, which languages work, and how fast: `sandbox doctor` and `sandbox bench`."""
