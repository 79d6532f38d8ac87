"""A Ray that starts nothing but two processes with the right names; for tests of what starts it."""
