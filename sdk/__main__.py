"""`python -m planaria` is the `planaria` command."""

import sys

from .cli import main

sys.exit(main())
