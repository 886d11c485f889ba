"""Program: what extraction makes, its report, and the inputs that it was made with."""

from .program import KEY, Program, in_modules, inputs_of, usable
from .report import ExtractReport, report_of

__all__ = ["KEY", "ExtractReport", "Program", "in_modules", "inputs_of", "report_of", "usable"]
