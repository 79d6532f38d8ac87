"""What this machine can isolate, which languages work here, and how fast.

What for: `sandbox doctor` and `sandbox bench`. Knows nothing of any particular problem.
"""

from sandbox.doctor.bench import measure_languages
from sandbox.doctor.doctor import examine

__all__ = ["examine", "measure_languages"]
