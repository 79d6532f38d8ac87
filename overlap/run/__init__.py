"""One run from start to end: the session, its engines and verifier, restarts, saving, and control from outside."""
