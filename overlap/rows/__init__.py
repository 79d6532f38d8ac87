"""The rows of a data set, from where they lie: a file, a folder or the hub."""
