"""What the routes of other projects' clients share: the fields of their requests, and how a result looks to them."""

__all__: list[str] = []
