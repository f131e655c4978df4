"""A tournament's report: one page that opens anywhere, and the same in Markdown, CSV and LaTeX."""

from nearkin.tournament.report.writing import write_report

__all__ = ["write_report"]
