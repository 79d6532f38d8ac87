"""Reads what a run has left: shows it on the terminal, in a browser and as one HTML file, and warns of what is ill."""
