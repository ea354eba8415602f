"""Recurrent families: layers for which a prompt is an initial state, exactly. A room for the algebra, and one for each family.

recurrence.py   S_t = A_t S_{t-1} + k_t v_tᵀ, and RWKV-4's running quotient, each as a running state and as an explicit sum
rwkv.py         RWKV 4, 5.1, 5.2 and 7: whole models
"""

from .recurrence import Carried, recurrence, recurrence_sum, wkv4, wkv4_sum
from .rwkv import Rwkv

__all__ = ["Carried", "Rwkv", "recurrence", "recurrence_sum", "wkv4", "wkv4_sum"]
