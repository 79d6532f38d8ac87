"""Piston's format, version 2: `execute` has the routes, `graders` answers those of open-r1's contests."""

from sandbox.serve.routes.piston.execute import FULL, OPENAPI, routes

__all__ = ["FULL", "OPENAPI", "routes"]
