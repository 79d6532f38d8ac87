"""SandboxFusion's format: `paths` has the routes, the other modules what three of them do."""

from sandbox.serve.routes.sandbox_fusion.paths import FULL, OPENAPI, routes

__all__ = ["FULL", "OPENAPI", "routes"]
