"""The command line: parse, call, show."""

from nearkin.cli.app import main

__all__ = ["main"]
