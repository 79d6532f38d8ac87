"""What routes of several formats share, by what it is for.

fields      a field of a request, refused by its name          labels       a problem as a label, and its reward
file_names  names of files in a program's work directory       tracebacks   a traceback as a notebook shows it
runs        limits, deadlines and exit codes of runs           gather       several jobs of one request at a time
"""

__all__: list[str] = []
