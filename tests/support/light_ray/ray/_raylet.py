"""Options of a client of the head."""


class GcsClientOptions:
    @classmethod
    def create(cls, address: str, password: None, **options: bool) -> str:
        return address
