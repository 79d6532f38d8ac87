"""`python -m sandbox`: see `sandbox.cli`."""

from sandbox.cli import main

raise SystemExit(main())
