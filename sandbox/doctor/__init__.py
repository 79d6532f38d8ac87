"""What this machine can isolate, and which languages work: `sandbox doctor`."""
