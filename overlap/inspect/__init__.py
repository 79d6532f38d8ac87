"""Reads the data of a run: shows it on the terminal, in a browser and as one HTML file, and warns of faults."""
