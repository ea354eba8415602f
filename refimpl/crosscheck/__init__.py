"""Is a kernel right by its own conventions, and if not, what is wrong with it?"""

from .check import crosscheck
from .families.linear_attention import LinearAttention
from .plan import Case
from .report import Finding, Report
from .spec import Spec
from .worker import Process

__all__ = ["Case", "Finding", "LinearAttention", "Process", "Report", "Spec", "crosscheck"]
