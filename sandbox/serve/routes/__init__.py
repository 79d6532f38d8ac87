"""One module per family of routes; `sandbox.serve.app` mounts what each gives."""

__all__: list[str] = []
