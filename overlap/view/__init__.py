"""Shows a run's samples to people: on the terminal (``overlap show``) and in a browser (``overlap view``).

Consumes  a run directory, also of a run that goes on, or a file of answers; produces lines, or a page on the loopback
Waits for the disk, and for requests
Woken by  a person
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.view.sample_filter import SampleFilter
    from overlap.view.serve import serve_samples
    from overlap.view.show import ShowChoice, show_samples
else:  # imported on first use: `overlap show` needs no server
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = ["SampleFilter", "ShowChoice", "serve_samples", "show_samples"]
