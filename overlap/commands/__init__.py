"""The commands of ``overlap``: their arguments (``parsers``), and the work behind each, which Python may call too."""
