"""SandboxFusion's routes, for its clients: verl, SkyRL, ROLL, tinker-cookbook and its own package."""
