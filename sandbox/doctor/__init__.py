"""What this machine can isolate, which languages work, and how fast: `sandbox doctor` and `sandbox bench`."""

from sandbox.doctor.bench import measure_languages
from sandbox.doctor.doctor import examine

__all__ = ["examine", "measure_languages"]
