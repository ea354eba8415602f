import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# Exact arithmetic is slow per example and its speed varies: no deadline. Derandomised: CI runs what a user runs.
settings.register_profile("default", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=300, derandomize=False)
settings.load_profile("default")
