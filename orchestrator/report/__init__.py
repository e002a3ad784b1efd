"""Tables and figures of a run, built from the files in its folder: HTML, PNG, CSV and the terminal."""

from orchestrator.report.data import ReportData, load_report
from orchestrator.report.files import build_report
from orchestrator.report.tables import print_summary

__all__ = ["ReportData", "build_report", "load_report", "print_summary"]
