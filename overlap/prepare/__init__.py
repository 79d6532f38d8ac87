"""Everything before a run starts: inputs loaded and checked, seats assigned, the plan written.

Starts no engine, no learner and no verifier. Raises ConfigError where the run could not work.
"""
