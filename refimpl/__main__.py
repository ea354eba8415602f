"""`python -m refimpl` is `refimpl`."""

import sys

from .cli import main

sys.exit(main())
