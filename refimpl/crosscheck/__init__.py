"""Check somebody else's kernel: is it right by its own conventions, and if not, what is wrong?"""

from .check import Finding, Report, crosscheck
from .families.linear_attention import LinearAttention
from .plan import Case
from .spec import Spec
from .worker import Process

__all__ = ["Case", "Finding", "LinearAttention", "Process", "Report", "Spec", "crosscheck"]
