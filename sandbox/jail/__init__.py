"""One confined process tree, and the only interface to pyharness and zygote."""
