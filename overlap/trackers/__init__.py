"""Where the rows of a run go beside ``metrics.jsonl``: TensorBoard, and services such as W&B.

Consumes  rows, samples and the end of a run; produces the same at each tracker
Waits for nobody: what a tracker has not taken waits in a bounded queue, and a tracker that fails costs no step
Woken by  the run, once per row
"""
